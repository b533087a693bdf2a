//! Churns a router for minutes and watches what it holds: memory, descriptors, threads, tasks.
//!
//!     cargo run -p tests --example soak -- ROUTER SECONDS REQUESTS_A_SECOND
//!
//! Three scripted engines stand behind it. Clients read whole answers and streams, leave in every
//! phase, read slowly, break off uploads and send nonsense; an operator reloads, removes and adds
//! endpoints, writes bad files and drains; an engine goes away and comes back. A table goes to the
//! standard output; the exit code is 1 unless all that was held is given back in the end.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program talks to its operator")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tests::fake_engine::{FakeEngine, Seen, Step, chunk, ok, stream_head};
use tests::rng::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const LISTEN: &str = "127.0.0.1:17500";
const ADMIN: &str = "127.0.0.1:17501";
const SOON: Duration = Duration::from_secs(30);
const SAMPLE_EVERY: Duration = Duration::from_secs(15);
const DISTURB_EVERY: Duration = Duration::from_secs(5);
/// What memory, by its median, may grow by between the first third and the last. The admin page's
/// ten minutes of history fill meanwhile.
const GROWTH_KIB_MAX: u64 = 2048;

/// What a client does, and how many in a hundred do so.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Client {
    Whole,
    Stream,
    LeavesEarly,
    LeavesInStream,
    ReadsSlowly,
    BreaksUploadOff,
    SendsNonsense,
    MeetsBrokenEngine,
}

const CLIENTS: [(Client, u32); 8] = [
    (Client::Whole, 45),
    (Client::Stream, 20),
    (Client::LeavesEarly, 8),
    (Client::LeavesInStream, 12),
    (Client::ReadsSlowly, 3),
    (Client::BreaksUploadOff, 4),
    (Client::SendsNonsense, 4),
    (Client::MeetsBrokenEngine, 4),
];

#[tokio::main]
async fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = || io::Error::other("soak ROUTER SECONDS REQUESTS_A_SECOND");
    let program = args.next().ok_or_else(usage)?;
    let mut number = || args.next().and_then(|it| it.parse::<u32>().ok()).ok_or_else(usage);
    let (seconds, rate) = (number()?, number()?);
    let mut rig = Rig::start(&program).await?;
    sleep(Duration::from_secs(3)).await;
    let before = rig.sample().await?;
    println!(
        "| s | requests | RSS KiB | descriptors | threads | connections | in flight | tasks |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    rig.tell(0, 0, &before);
    let samples = rig.churn(seconds, rate).await?;
    let after = rig.rest(&before).await?;
    rig.verdict(&before, &samples, &after)
}

/// The router with everything around it.
struct Rig {
    folder: tempfile::TempDir,
    engines: Vec<FakeEngine>,
    router: Child,
    ended: BTreeMap<(Client, bool), u32>,
}

/// What the router holds at one moment.
#[derive(Clone, Copy, Debug)]
struct Held {
    resident_kib: u64,
    descriptors: u64,
    threads: u64,
    connections: u64,
    in_flight: u64,
    tasks: u64,
}

impl Rig {
    async fn start(program: &str) -> io::Result<Self> {
        let mut engines = Vec::new();
        for _ in 0..3 {
            engines.push(FakeEngine::start(answer).await);
        }
        let folder = tempfile::tempdir()?;
        write(&folder.path().join("router.toml"), &engines)?;
        let router = Command::new(program)
            .arg("--config")
            .arg(folder.path().join("router.toml"))
            .env("RUST_LOG", "off")
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let rig = Self { folder, engines, router, ended: BTreeMap::new() };
        let begun = Instant::now();
        while !page("/readyz").await.is_ok_and(|it| it.contains("200 OK")) {
            if SOON < begun.elapsed() {
                return Err(io::Error::other("the router is not ready"));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(rig)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("router.toml")
    }

    async fn sample(&self) -> io::Result<Held> {
        let pid = self.router.id().ok_or_else(|| io::Error::other("the router has ended"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|it| it.strip_prefix(name));
            line.and_then(|it| it.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let metrics = page("/metrics").await?;
        let metric = |name: &str| {
            let name = format!("crossover_router_{name} ");
            let line = metrics.lines().find_map(|it| it.strip_prefix(&name));
            line.and_then(|it| it.parse().ok()).unwrap_or(u64::MAX)
        };
        Ok(Held {
            resident_kib: field("VmRSS:"),
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
            threads: field("Threads:"),
            connections: metric("connections"),
            in_flight: metric("total_in_flight"),
            tasks: metric("tasks"),
        })
    }

    fn tell(&self, second: u64, requests: u64, held: &Held) {
        let Held { resident_kib, descriptors, threads, connections, in_flight, tasks } = held;
        println!(
            "| {second} | {requests} | {resident_kib} | {descriptors} | {threads} | {connections} \
             | {in_flight} | {tasks} |"
        );
    }

    /// Load and disturbance for so long; what was held on the way.
    async fn churn(&mut self, seconds: u32, rate: u32) -> io::Result<Vec<Held>> {
        let mut rng = Rng::new(1);
        let (mut samples, mut requests, mut disturbed) = (Vec::new(), 0, 0_u32);
        let mut running = JoinSet::new();
        let begun = Instant::now();
        let (mut sample_at, mut disturb_at) = (begun + SAMPLE_EVERY, begun + DISTURB_EVERY);
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        while begun.elapsed() < Duration::from_secs(seconds.into()) {
            ticks.tick().await;
            let client = pick(&mut rng);
            requests += 1;
            running.spawn(async move {
                let went = timeout(SOON, run(client)).await.unwrap_or(Ok(false));
                (client, went.unwrap_or(false))
            });
            while let Some(done) = running.try_join_next() {
                *self.ended.entry(done.map_err(io::Error::other)?).or_default() += 1;
            }
            if disturb_at < Instant::now() {
                disturb_at += DISTURB_EVERY;
                self.disturb(disturbed).await?;
                disturbed += 1;
            }
            if sample_at < Instant::now() {
                sample_at += SAMPLE_EVERY;
                let held = self.sample().await?;
                self.tell(begun.elapsed().as_secs(), requests, &held);
                samples.push(held);
            }
        }
        while let Some(done) = running.join_next().await {
            *self.ended.entry(done.map_err(io::Error::other)?).or_default() += 1;
        }
        Ok(samples)
    }

    /// What an operator and the world do, in turn.
    async fn disturb(&mut self, turn: u32) -> io::Result<()> {
        match turn % 6 {
            0 => write(&self.file(), &self.engines[..2])?,
            1 => fs::write(self.file(), "listen = 7")?,
            2 => write(&self.file(), &self.engines)?,
            3 => self.engines[1].stop().await,
            4 => self.engines[1].restart().await,
            _ => {
                ask("POST /drain/c").await?;
                sleep(Duration::from_millis(500)).await;
                ask("POST /resume/c").await?;
            }
        }
        if turn % 6 < 3 {
            let pid = self.router.id().unwrap_or(0).to_string();
            Command::new("kill").args(["-HUP", &pid]).status().await?;
        }
        Ok(())
    }

    /// Waits until everything is given back that can be, and gives what is held then.
    async fn rest(&self, before: &Held) -> io::Result<Held> {
        let begun = Instant::now();
        loop {
            sleep(Duration::from_millis(500)).await;
            let held = self.sample().await?;
            let is_done = held.connections + held.in_flight + held.tasks == 0
                && held.descriptors <= before.descriptors;
            if is_done || SOON < begun.elapsed() {
                self.tell(begun.elapsed().as_secs(), 0, &held);
                return Ok(held);
            }
        }
    }

    fn verdict(&self, before: &Held, samples: &[Held], after: &Held) -> io::Result<()> {
        println!("\n| client | as it should | otherwise |\n|---|---|---|");
        for (client, _) in CLIENTS {
            let count = |went| self.ended.get(&(client, went)).copied().unwrap_or(0);
            println!("| {client:?} | {} | {} |", count(true), count(false));
        }
        let third = samples.len() / 3;
        let (early, late) = (median(&samples[..third]), median(&samples[samples.len() - third..]));
        println!("\nmedian of memory in the first third {early} KiB, in the last {late} KiB");
        let mut wrong = Vec::new();
        if early + GROWTH_KIB_MAX < late {
            wrong.push("memory grew");
        }
        if before.descriptors < after.descriptors {
            wrong.push("descriptors are left");
        }
        if 0 < after.connections + after.in_flight + after.tasks {
            wrong.push("connections, requests or tasks are left");
        }
        if before.threads != after.threads {
            wrong.push("threads are left");
        }
        if wrong.is_empty() {
            println!("everything was given back");
            return Ok(());
        }
        Err(io::Error::other(wrong.join(", ")))
    }
}

fn median(part: &[Held]) -> u64 {
    let mut sizes: Vec<_> = part.iter().map(|it| it.resident_kib).collect();
    sizes.sort_unstable();
    sizes.get(sizes.len() / 2).copied().unwrap_or(0)
}

/// Writes a configuration with these engines.
fn write(path: &Path, engines: &[FakeEngine]) -> io::Result<()> {
    let mut text = format!(
        "listen = {LISTEN:?}\nadmin = {ADMIN:?}\n[policy]\nhigh = 4\ndwell_ms = 100\n\
         [timeouts]\nsend_stall_ms = 2000\npool_idle_ms = 1000\n[health]\ninterval_ms = 200\n"
    );
    for (engine, (name, role)) in engines.iter().zip(NAMES) {
        text += &format!(
            "[[endpoint]]\nname = {name:?}\nrole = {role:?}\nkind = \"vllm\"\n\
             url = \"http://{}\"\n",
            engine.address
        );
    }
    fs::write(path, text)
}

const NAMES: [(&str, &str); 3] = [("a", "speculative"), ("b", "throughput"), ("c", "throughput")];

/// What the engines do, by the path.
fn answer(seen: &Seen) -> Vec<Step> {
    let piece = || Step::Send(chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"));
    let mut steps = vec![Step::ReadBody];
    match seen.path() {
        "/whole" => steps.push(Step::Send(ok("application/json", b"{\"choices\":[]}"))),
        "/stream" => {
            steps.push(Step::Send(stream_head()));
            for _ in 0..20 {
                steps.extend([piece(), Step::Wait(Duration::from_millis(25))]);
            }
            steps.push(Step::Send(chunk(b"")));
        }
        "/flood" => {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n";
            steps.extend([Step::Send(head.into()), Step::Flood(1 << 26)]);
        }
        "/broken" => steps.extend([Step::Send(stream_head()), piece(), Step::Reset]),
        _ => steps.push(Step::Stall),
    }
    steps
}

fn pick(rng: &mut Rng) -> Client {
    let mut left = rng.within(0, 99);
    for (client, share) in CLIENTS {
        match left.checked_sub(share) {
            Some(rest) => left = rest,
            None => return client,
        }
    }
    Client::Whole
}

/// One client from its first byte to its last; true if it went as it should for such a client.
async fn run(client: Client) -> io::Result<bool> {
    let address: SocketAddr = LISTEN.parse().map_err(io::Error::other)?;
    let mut stream = TcpStream::connect(address).await?;
    let post = |path: &str, len: usize, body: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: r\r\ncontent-length: {len}\r\n\r\n{body}")
    };
    let path = match client {
        Client::Whole | Client::SendsNonsense | Client::BreaksUploadOff => "/whole",
        Client::Stream | Client::LeavesInStream => "/stream",
        Client::LeavesEarly => "/stall",
        Client::ReadsSlowly => "/flood",
        Client::MeetsBrokenEngine => "/broken",
    };
    let request = match client {
        Client::SendsNonsense => "\u{1}\u{2} nonsense\r\n\r\n".to_owned(),
        Client::BreaksUploadOff => post(path, 1 << 20, &"x".repeat(1 << 14)),
        _ => post(path, 2, "{}"),
    };
    stream.write_all(request.as_bytes()).await?;
    let mut text = Vec::new();
    match client {
        Client::Whole => {
            for _ in 0..2 {
                until(&mut stream, &mut text, b"{\"choices\":[]}").await?;
                text.clear();
                stream.write_all(request.as_bytes()).await?;
            }
            until(&mut stream, &mut text, b"{\"choices\":[]}").await
        }
        Client::Stream => until(&mut stream, &mut text, b"\r\n0\r\n\r\n").await,
        Client::LeavesInStream => until(&mut stream, &mut text, b"data: ").await,
        Client::ReadsSlowly => {
            let begun = until(&mut stream, &mut text, b"\r\n\r\n").await?;
            sleep(Duration::from_secs(4)).await;
            Ok(begun)
        }
        Client::LeavesEarly | Client::BreaksUploadOff => {
            sleep(Duration::from_millis(100)).await;
            Ok(true)
        }
        Client::SendsNonsense => until(&mut stream, &mut text, b" 400 ").await,
        // It must not look like a good end.
        Client::MeetsBrokenEngine => Ok(!until(&mut stream, &mut text, b"\r\n0\r\n\r\n").await?),
    }
}

/// Reads until `wanted` has come; false if the other side ends before.
async fn until(stream: &mut TcpStream, text: &mut Vec<u8>, wanted: &[u8]) -> io::Result<bool> {
    while !text.windows(wanted.len()).any(|it| it == wanted) {
        if stream.read_buf(text).await.unwrap_or(0) == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One exchange with the admin port.
async fn ask(what: &str) -> io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(ADMIN).await?;
        stream.write_all(format!("{what} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    };
    timeout(SOON, exchange).await.map_err(io::Error::other)?
}

async fn page(path: &str) -> io::Result<String> {
    ask(&format!("GET {path}")).await
}
