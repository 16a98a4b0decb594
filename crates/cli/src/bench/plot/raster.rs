//! A pixel image with a compiled-in font, and its PNG encoding.

use std::convert::Infallible;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// The width of a character in pixels, for text and for titles.
pub(super) const ADVANCE: i32 = get_raster_width(FontWeight::Regular, RasterHeight::Size16) as i32;
pub(super) const TITLE_ADVANCE: i32 =
    get_raster_width(FontWeight::Regular, RasterHeight::Size20) as i32;

/// An image with three bytes per pixel, initially white.
pub(super) struct Raster {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl Raster {
    pub(super) fn new(width: u32, height: u32) -> Self {
        Self { width, height, pixels: vec![255; 3 * width as usize * height as usize] }
    }

    /// Encodes the image; each row is stored as its difference from the row above, which compresses well.
    pub(super) fn into_png(self) -> Vec<u8> {
        const UP: u8 = 2;
        let row = 3 * self.width as usize;
        let mut filtered = Vec::with_capacity(self.pixels.len() + self.height as usize);
        let mut above = vec![0; row];
        for pixels in self.pixels.chunks_exact(row) {
            filtered.push(UP);
            filtered.extend(pixels.iter().zip(&above).map(|(own, up)| own.wrapping_sub(*up)));
            above.copy_from_slice(pixels);
        }
        let mut header = [self.width.to_be_bytes(), self.height.to_be_bytes()].concat();
        // Eight bits per channel, RGB, and PNG's default methods.
        header.extend([8, 2, 0, 0, 0]);
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        chunk(&mut file, b"IHDR", &header);
        chunk(&mut file, b"IDAT", &fdeflate::compress_to_vec(&filtered));
        chunk(&mut file, b"IEND", &[]);
        file
    }
}

fn chunk(file: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend(name);
    file.extend(data);
    let sum = checksum(&file[start..]);
    file.extend(sum.to_be_bytes());
}

/// The CRC at the end of a PNG chunk.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |rest: u32, byte: &u8| {
        (0..8).fold(rest ^ u32::from(*byte), |rest, _| {
            if rest & 1 == 1 { 0xedb8_8320 ^ (rest >> 1) } else { rest >> 1 }
        })
    };
    !bytes.iter().fold(!0, step)
}

/// The font size nearest to the requested one.
fn height_of(asked: f64) -> RasterHeight {
    if asked < 18.0 { RasterHeight::Size16 } else { RasterHeight::Size20 }
}

impl DrawingBackend for &mut Raster {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        let inside = (0..self.width as i32).contains(&x) && (0..self.height as i32).contains(&y);
        if inside {
            let at = 3 * (y as usize * self.width as usize + x as usize);
            let (r, g, b) = color.rgb;
            for (pixel, new) in self.pixels[at..at + 3].iter_mut().zip([r, g, b]) {
                let mixed = f64::from(*pixel) * (1.0 - color.alpha) + f64::from(new) * color.alpha;
                *pixel = mixed.round() as u8;
            }
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Drawn {
        let size = height_of(style.size());
        let (width, height) = self.estimate_text_size(text, style)?;
        let (width, height) = (width as i32, height as i32);
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        let advance = get_raster_width(FontWeight::Regular, size) as i32;
        let (turn, color) = (style.transform(), style.color());
        for (i, letter) in text.chars().enumerate() {
            let known = get_raster(letter, FontWeight::Regular, size);
            let Some(raster) = known.or(get_raster('?', FontWeight::Regular, size)) else {
                continue;
            };
            for (row, ink) in raster.raster().iter().enumerate() {
                for (column, ink) in ink.iter().enumerate().filter(|(_, ink)| **ink > 0) {
                    let across = left + i as i32 * advance + column as i32;
                    let (dx, dy) = turn.transform(across, top + row as i32);
                    let alpha = color.alpha * f64::from(*ink) / 255.0;
                    self.draw_pixel((x + dx, y + dy), BackendColor { alpha, ..color })?;
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let size = height_of(style.size());
        let advance = get_raster_width(FontWeight::Regular, size) as u32;
        Ok((text.chars().count() as u32 * advance, size.val() as u32))
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        let points: Vec<_> = path.into_iter().collect();
        for pair in points.windows(2) {
            self.draw_line(pair[0], pair[1], style)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // The empty last chunk of every file.
        assert_eq!(checksum(b"IEND"), 0xae42_6082);
    }

    #[test]
    fn pixels_come_back() {
        let mut raster = Raster::new(3, 2);
        let red = BackendColor { alpha: 1.0, rgb: (255, 0, 0) };
        (&mut raster).draw_pixel((2, 1), red).expect("it is drawn");
        (&mut raster).draw_pixel((3, -1), red).expect("outside is nowhere");
        let png = raster.into_png();
        let data = png.windows(4).position(|name| name == b"IDAT").expect("a chunk");
        let len = u32::from_be_bytes(png[data - 4..data].try_into().expect("four bytes")) as usize;
        let rows = fdeflate::decompress_to_vec(&png[data + 4..][..len]).expect("it unpacks");
        let white = 255u8;
        assert_eq!(rows[..10], [2, white, white, white, white, white, white, white, white, white]);
        // White minus white, and red minus white.
        assert_eq!(rows[10..], [2, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }
}
