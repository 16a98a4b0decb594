//! Loads the pixels of a cube into shared memory, as strips of one group each.

use cubecl::prelude::*;

use super::block::PlaneWork;
use super::form::CHUNK;
use crate::conv::common::{load_if, read};

/// Loads the pixels that a cube reads into shared memory as strips, with zeros outside the image.
#[cube]
pub(super) fn stage<S: Float, N: Size>(
    a: &[Vector<S, N>],
    work: &PlaneWork<'_>,
    shared: &mut Shared<[Vector<S, N>]>,
) {
    let (gather, form) = (work.gather, comptime!(work.form));
    let (chunks, wide, ahead) = comptime!((form.chunks, form.wide(), form.ahead()));
    let (pitch, lines) = comptime!((form.pitch(), form.pixel_lines()));
    // The distance from a unit's strip to its next one.
    let further = comptime!(form.units() / chunks);
    let (first_line, first_column) = comptime!((form.height.pixels().0, form.tile.pixels().0));
    let top = read(&gather.height, work.line) + first_line;
    let left = read(&gather.width, work.column) + first_column;
    let (offset, chunk) = (UNIT_POS / chunks, UNIT_POS % chunks);
    let to = chunk * comptime!(form.chunk_step());
    let base = CUBE_POS_Z * gather.a_batch + (work.chunk + chunk) * CHUNK;
    let base = (base / comptime!(form.lanes)) as i32;
    let line_step = gather.height.a_step / comptime!(form.lanes as i32);
    let column_step = gather.width.a_step / comptime!(form.lanes as i32);
    let mut line = offset / pitch;
    let mut strip = offset % pitch;
    for _ in 0..comptime!(form.staged().div_ceil(form.units() * ahead)).runtime() {
        let mut held = Sequence::<Vector<S, N>>::new();
        let mut offsets = Sequence::<u32>::new();
        let mut there = Sequence::<bool>::new();
        #[unroll]
        for _ in 0..ahead {
            // As an unsigned number, a negative coordinate is larger than every extent.
            let h = top + line as i32;
            let on_line = line < lines && (h as u32) < gather.height.extent as u32;
            let first = left + (strip * wide) as i32;
            let at = base + h * line_step + first * column_step;
            #[unroll]
            for i in 0..wide {
                let inside = on_line && ((first + i as i32) as u32) < gather.width.extent as u32;
                held.push(load_if(a, inside, (at + i as i32 * column_step) as u32));
            }
            offsets.push(to + line * pitch + strip);
            there.push(line < lines);
            line += comptime!(further / pitch);
            strip += comptime!(further % pitch);
            if strip >= pitch {
                strip -= pitch;
                line += 1;
            }
        }
        #[unroll]
        for turn in 0..ahead {
            if *there.index(comptime!(turn as usize)) {
                let offset = *offsets.index(comptime!(turn as usize));
                #[unroll]
                for group in 0..wide {
                    let mut made = Vector::<S, N>::empty();
                    #[unroll]
                    for e in 0..CHUNK {
                        let pixel = comptime!((turn * wide + e / form.group) as usize);
                        let lane = comptime!((group * form.group + e % form.group) as usize);
                        made.insert(comptime!(e as usize), held.index(pixel).extract(lane));
                    }
                    let at = offset + comptime!(group * form.group_step());
                    shared[at as usize] = made;
                }
            }
        }
    }
}
