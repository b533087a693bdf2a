//! Lines over concurrency, one for each target, as SVG.

use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, DrawingAreaErrorKind, IntoDrawingArea, IntoLogRange,
    LineSeries, Palette, Palette99, PathElement, SVGBackend, SeriesLabelPosition, WHITE,
};

use super::Results;
use crate::cell::Cell;

const SIZE: (u32, u32) = (860, 520);

/// Medians over the rounds by requests in flight, both axes from their least to their most; `None`
/// when fewer than two closed loads were measured.
pub fn by_concurrency(results: &Results, title: &str, value: fn(&Cell) -> f64) -> Option<String> {
    let of_load = |load: &String| Some((f64::from(load.parse::<u32>().ok()?), load.clone()));
    let mut loads: Vec<(f64, String)> = results.loads.iter().filter_map(of_load).collect();
    loads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (loads.first()?.0, loads.last()?.0);
    if first == last {
        return None;
    }
    let line = |target: &String| {
        let points = loads.iter().map(|(at, load)| (*at, results.median(target, load, value)));
        (target.clone(), points.collect::<Vec<_>>())
    };
    let lines: Vec<_> = results.targets.iter().map(line).collect();
    let highest = lines.iter().flat_map(|it| &it.1).map(|it| it.1).fold(1.0, f64::max);
    let mut text = String::new();
    draw(&mut text, title, &lines, (first, last), highest * 1.05)
        .expect("a picture in memory meets no error");
    Some(text)
}

type Line = (String, Vec<(f64, f64)>);

fn draw(
    text: &mut String,
    title: &str,
    lines: &[Line],
    (first, last): (f64, f64),
    highest: f64,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((first..last).log_scale().base(2.0), 0.0..highest)?;
    chart
        .configure_mesh()
        .x_desc("requests in flight")
        .light_line_style(WHITE)
        .x_label_formatter(&|it| format!("{it:.0}"))
        .draw()?;
    for (index, (target, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(target)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|it| Circle::new(*it, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()
}
