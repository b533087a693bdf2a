//! The configuration as a file that gives it again.

use std::fmt;

use crate::config::{
    Activations, Config, Device, LoadFormat, Memory, Mode, Quantization, UnknownFields, Until,
};

impl fmt::Display for Device {
    /// As the flag takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { cores } if cores.is_empty() => f.write_str("cpu"),
            Self::Cpu { cores } => write!(f, "cpu:{}", list(cores)),
            Self::Cuda { cards } => f.write_str(&list(cards)),
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model = {:?}", self.model.display().to_string())?;
        if self.load_format == LoadFormat::Dummy {
            writeln!(f, "load-format = \"dummy\"")?;
        }
        if self.quantization == Quantization::Fp8 {
            writeln!(f, "quantization = \"fp8\"")?;
        }
        writeln!(f, "hub-cache = {:?}", self.hub_cache.display().to_string())?;
        writeln!(f, "mode = {:?}", self.mode.name())?;
        write_mode(f, &self.mode)?;
        writeln!(f, "device = {:?}", self.device.to_string())?;
        let activations = match self.activations {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        };
        writeln!(f, "activations = {activations:?}")?;
        match self.memory {
            Memory::Bytes(bytes) => writeln!(f, "memory = {bytes}")?,
            Memory::Fraction(share) => writeln!(f, "memory-fraction = {share:?}")?,
        }
        if let Some(dir) = &self.share_weights {
            writeln!(f, "share-weights = {:?}", dir.display().to_string())?;
        }
        if !self.names.is_empty() {
            writeln!(f, "served-model-name = {:?}", self.names.join(","))?;
        }
        if let Some(tokens) = self.context_max {
            writeln!(f, "context-max = {tokens}")?;
        }
        writeln!(f, "running-max = {}", self.running_max)?;
        writeln!(f, "waiting-max = {}", self.waiting_max)?;
        writeln!(f, "rows-max = {}", self.rows_max)?;
        writeln!(f, "prompt-rows-max = {}", self.prompt_rows_max)?;
        writeln!(f, "listen = {:?}", self.serve.listen.to_string())?;
        let unknown = match self.serve.unknown_fields {
            UnknownFields::Ignore => "ignore",
            UnknownFields::Reject => "reject",
        };
        writeln!(f, "unknown-fields = {unknown:?}")?;
        if !self.serve.allowed_origins.is_empty() {
            writeln!(f, "allowed-origins = {:?}", self.serve.allowed_origins.join(","))?;
        }
        writeln!(f, "body-max = {}", self.serve.body_max)?;
        writeln!(f, "connections-max = {}", self.serve.connections_max)?;
        writeln!(f, "request-seconds-max = {}", self.serve.request_max.as_secs())?;
        writeln!(f, "drain-seconds = {}", self.serve.drain_max.as_secs())?;
        writeln!(f, "log-format = {:?}", if self.log.json { "json" } else { "text" })?;
        writeln!(f, "log = {:?}", self.log.filter)
    }
}

fn write_mode(f: &mut fmt::Formatter<'_>, mode: &Mode) -> fmt::Result {
    let depth = match mode {
        Mode::Baseline => return Ok(()),
        Mode::Ngram { depth } => depth,
        Mode::Eagle3 { head, layers, depth, simulated } => {
            writeln!(f, "draft = {:?}", head.display().to_string())?;
            if let Some(layers) = layers {
                writeln!(f, "eagle-layers = {:?}", list(layers))?;
            }
            if let Some(rates) = simulated {
                writeln!(f, "simulate-acceptance = {:?}", list(rates))?;
            }
            depth
        }
    };
    writeln!(f, "draft-max = {}", depth.max)?;
    match &depth.until {
        Until::Always => Ok(()),
        Until::Decoding(requests) => writeln!(f, "draft-until = {requests}"),
        Until::Table(table) => {
            let entries: Vec<_> = table.iter().map(|(n, k)| format!("{n}:{k}")).collect();
            writeln!(f, "draft-until = {:?}", entries.join(","))
        }
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
