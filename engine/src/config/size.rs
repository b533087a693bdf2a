//! Amounts of memory in words, both ways.

/// Bytes from `1024`, `512MiB`, `2GB` and the like. The error ends the sentence "'WORD' ...".
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err("is not a size such as 512MiB or 2GiB".to_owned()),
    };
    let wrong = || "is not a size such as 512MiB or 2GiB".to_owned();
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor).ok_or_else(wrong)?,
        Err(_) => {
            let part: f64 = number.parse().map_err(|_| wrong())?;
            #[expect(clippy::cast_precision_loss, reason = "at most 2^40")]
            #[expect(clippy::cast_possible_truncation, reason = "bounded just below")]
            #[expect(clippy::cast_sign_loss, reason = "a minus sign is no digit")]
            if part < 1e6 { (part * factor as f64) as u64 } else { return Err(wrong()) }
        }
    };
    match bytes {
        0 => Err("is no memory at all".to_owned()),
        // What --print-config writes is TOML, whose whole numbers end there.
        it if i64::try_from(it).is_err() => Err(wrong()),
        it => Ok(it),
    }
}

/// Bytes for people: the largest binary unit that leaves at least one before the point.
pub fn show(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, factor) in units {
        if factor <= bytes {
            let tenths = bytes / (factor / 10).max(1);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}
