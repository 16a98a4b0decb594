//! Draws a landscape and puts it through dilation, erosion, opening and a bank of edge filters; writes a PNG.
//!
//! `cargo run --release --example picture -p windowpane-examples`
//!
//! Dilation is max pooling with stride 1, erosion is min pooling with stride 1. Opening is an erosion and then a dilation: it
//! removes bright details that the window does not fit into, such as blossoms, window bars and white speckles, and keeps the
//! rest in place.

use std::fs::File;
use std::io::BufWriter;

use windowpane::{Conv, Device, MaxPool, MinPool, PaddingMode, Same, Tensor};

const WIDTH: usize = 360;
const HEIGHT: usize = 240;
const GAP: usize = 6;

type Colour = [f32; 3];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::best();
    let picture = Tensor::from_slice(&device, &landscape().concat(), [1, HEIGHT, WIDTH, 3])?;

    let dilated = dilation(&picture, 9)?;
    let eroded = erosion(&picture, 9)?;
    let opened = dilation(&erosion(&picture, 5)?, 5)?;

    // Four directions of Sobel's filter over the brightness. The edge of the picture is no edge in it.
    let brightness = Tensor::from_slice(&device, &[0.299f32, 0.587, 0.114], [1, 1, 1, 3])?;
    let grey = Conv::new(1).forward(&picture, &brightness, None)?;
    let bank: [[f32; 9]; 4] = [
        [-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0],
        [0.0, 1.0, 2.0, -1.0, 0.0, 1.0, -2.0, -1.0, 0.0],
        [1.0, 2.0, 1.0, 0.0, 0.0, 0.0, -1.0, -2.0, -1.0],
        [2.0, 1.0, 0.0, 1.0, 0.0, -1.0, 0.0, -1.0, -2.0],
    ];
    let bank = Tensor::from_slice(&device, &bank.concat(), [4, 3, 3, 1])?;
    let edges = Conv::new(3).padding(1).padding_mode(PaddingMode::Replicate);
    let edges = edges.forward(&grey, &bank, None)?.to_vec::<f32>()?;

    let panels = [
        colours(&picture)?,
        colours(&dilated)?,
        colours(&eroded)?,
        colours(&opened)?,
        edges.chunks(4).map(strength).collect(),
        edges.chunks(4).map(direction).collect(),
    ];
    write_png("picture.png", &panels)?;
    println!("picture.png: the picture, dilated, eroded; opened, its edges, their directions");
    Ok(())
}

fn dilation(x: &Tensor, size: usize) -> windowpane::Result<Tensor> {
    MaxPool::new(size).stride(1).padding(Same::Upper).forward(x)
}

fn erosion(x: &Tensor, size: usize) -> windowpane::Result<Tensor> {
    MinPool::new(size).stride(1).padding(Same::Upper).forward(x)
}

fn colours(x: &Tensor) -> windowpane::Result<Vec<Colour>> {
    Ok(x.to_vec::<f32>()?.chunks(3).map(|c| [c[0], c[1], c[2]]).collect())
}

fn strength(responses: &[f32]) -> Colour {
    let strongest = responses.iter().fold(0f32, |most, r| most.max(r.abs()));
    [1.0 - strongest / 1.5; 3]
}

/// A colour for each direction, as bright as the edge is strong.
fn direction(responses: &[f32]) -> Colour {
    const OF: [Colour; 4] = [[1.0, 0.35, 0.3], [1.0, 0.9, 0.3], [0.3, 0.75, 1.0], [0.5, 1.0, 0.4]];
    let magnitudes = responses.iter().map(|r| r.abs());
    let strongest = magnitudes.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let (direction, strength) = strongest.unwrap_or((0, 0.0));
    OF[direction].map(|c| c * strength / 1.5)
}

/// Sky, sun and birds, hills, a meadow, a house, trees and stems, and the speckles of an old film.
fn landscape() -> Vec<Colour> {
    let mut noise = 1u32;
    let mut random = move || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 8) as f32 / (1 << 24) as f32
    };
    let mut picture: Vec<Colour> = Vec::with_capacity(WIDTH * HEIGHT);
    for y in 0..HEIGHT {
        for x in 0..WIDTH {
            let grain = 0.05 * (random() - 0.5);
            let colour = scene(x as f32, y as f32);
            let speckle = random();
            picture.push(match speckle {
                _ if speckle < 0.0008 => [0.05; 3],
                _ if speckle > 0.9992 => [1.0; 3],
                _ => colour.map(|c| (c + grain).clamp(0.0, 1.0)),
            });
        }
    }
    picture
}

fn scene(x: f32, y: f32) -> Colour {
    let mix = |a: Colour, b: Colour, t: f32| [0, 1, 2].map(|i| a[i] + (b[i] - a[i]) * t);
    let near = |cx: f32, cy: f32, r: f32| (x - cx).hypot(y - cy) < r;
    let (width, height) = (WIDTH as f32, HEIGHT as f32);

    let far_hill = 0.52 * height + 14.0 * (x / 47.0).sin() + 8.0 * (x / 19.0 + 1.0).sin();
    let hill = 0.64 * height + 16.0 * (x / 71.0 + 2.0).sin() + 3.0 * (x / 11.0).sin();
    let meadow = 0.78 * height + 5.0 * (x / 90.0).sin();

    // The house: a wall, two windows, a door, a roof.
    let (left, right, eaves, ground) = (210.0, 282.0, 132.0, 192.0);
    if (left..right).contains(&x) && (eaves..ground).contains(&y) {
        let window = (146.0..164.0).contains(&y)
            && ((222.0..238.0).contains(&x) || (254.0..270.0).contains(&x));
        if window {
            let bars =
                (x - 230.0).abs() < 1.0 || (x - 262.0).abs() < 1.0 || (y - 155.0).abs() < 1.0;
            return if bars { [0.9; 3] } else { [0.25, 0.35, 0.5] };
        }
        let door = (238.0..252.0).contains(&x) && y > 168.0;
        return if door { [0.4, 0.22, 0.12] } else { [0.93, 0.87, 0.74] };
    }
    if (100.0..eaves).contains(&y) && (x - 246.0).abs() < (y - 94.0) * 1.15 {
        return if (y as u32 / 4).is_multiple_of(2) {
            [0.7, 0.25, 0.18]
        } else {
            [0.62, 0.2, 0.15]
        };
    }
    // Trees: crowns of some circles, and trunks.
    for (tx, ty, size) in [(60.0, 150.0, 1.0), (104.0, 166.0, 0.7), (322.0, 152.0, 0.9)] {
        let crown = [(0.0, 0.0, 24.0), (-17.0, 10.0, 17.0), (17.0, 9.0, 18.0), (2.0, -16.0, 16.0)];
        if let Some((cx, cy, _)) =
            crown.into_iter().find(|(cx, cy, r)| near(tx + cx * size, ty + cy * size, r * size))
        {
            let lit = ((x - tx - cx * size) - (y - ty - cy * size)) / (60.0 * size);
            return mix([0.1, 0.3, 0.12], [0.35, 0.6, 0.25], 0.5 + lit);
        }
        if (x - tx).abs() < 4.0 * size && y > ty && y < ty + 62.0 * size {
            return [0.33, 0.22, 0.13];
        }
    }
    if y > meadow {
        // Stems two pixels wide, and blossoms.
        let (stem, across) = (x as u32 / 11, x as u32 % 11);
        let top = meadow + 8.0 + (stem * 37 % 23) as f32;
        if across < 2 && (top..top + 16.0).contains(&y) {
            return if y < top + 4.0 { [0.95, 0.8, 0.2] } else { [0.1, 0.3, 0.1] };
        }
        return mix([0.45, 0.66, 0.3], [0.25, 0.48, 0.2], (y - meadow) / (height - meadow));
    }
    if y > hill {
        return mix([0.36, 0.55, 0.34], [0.42, 0.62, 0.32], x / width);
    }
    if y > far_hill {
        return mix([0.45, 0.55, 0.62], [0.5, 0.62, 0.6], x / width);
    }
    // Birds: two thin arcs each.
    for (bx, by) in [(120.0, 40.0), (146.0, 52.0), (170.0, 36.0), (98.0, 60.0)] {
        let (dx, dy) = ((x - bx).abs(), y - by);
        if dx < 9.0 && (dy + 4.0 * (dx / 9.0 * 3.1).sin()).abs() < 1.1 {
            return [0.12; 3];
        }
    }
    if near(300.0, 44.0, 20.0) {
        return [1.0, 0.95, 0.7];
    }
    mix([0.4, 0.62, 0.9], [0.96, 0.86, 0.74], (y / (0.6 * height)).min(1.0))
}

/// Three panels in each row.
fn write_png(path: &str, panels: &[Vec<Colour>]) -> Result<(), png::EncodingError> {
    let (across, down) = (3, panels.len() / 3);
    let width = across * (WIDTH + GAP) + GAP;
    let height = down * (HEIGHT + GAP) + GAP;
    let mut bytes = vec![255u8; 3 * width * height];
    for (nth, panel) in panels.iter().enumerate() {
        let left = GAP + nth % across * (WIDTH + GAP);
        let top = GAP + nth / across * (HEIGHT + GAP);
        for (i, colour) in panel.iter().enumerate() {
            let at = 3 * ((top + i / WIDTH) * width + left + i % WIDTH);
            bytes[at..at + 3].copy_from_slice(&colour.map(|c| (c.clamp(0.0, 1.0) * 255.0) as u8));
        }
    }
    let file = BufWriter::new(File::create(path)?);
    let mut encoder = png::Encoder::new(file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&bytes)
}
