//! Conversions of elements from one type to another, each rounded once. Integers become other integers as such; all
//! other elements are exact in f32 and become one first, but for those of i32 and u32.

use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::DType;

use crate::cube::buffers::{self, BufferError, Given};
use crate::cube::convert::{Widening, elem, narrow, nearest_integers, round, widen};
use crate::cube::unit::{plain_grid, unit_position, widest_lanes};
use crate::device::Target;
use crate::packed;

/// Whether [`cast`] converts from one type to another. It does not from f64, nor between floats and i64, nor from floats
/// to u32: an f32 says too little of these.
pub fn can_cast([from, to]: [DType; 2]) -> bool {
    match (from, to) {
        (DType::F64, _) => false,
        (DType::I64, to) => !to.is_float(),
        (from, DType::I64 | DType::U32) => !from.is_float(),
        _ => true,
    }
}

/// Converts `elements` of the type `from` in one buffer to the type `to` in another, if there is such a
/// [conversion](can_cast) and the device has both types. Floats are rounded to the nearest integer, of two the even one;
/// numbers beyond a type's range become its least or largest number, and NaN 0. A bool is whether a number is not 0.
///
/// The launch is asynchronous.
pub fn cast(
    target: Target<'_>,
    [from, to]: [DType; 2],
    input: &Handle,
    output: &Handle,
    elements: usize,
) -> Result<(), BufferError> {
    let Target { client, device } = target;
    let given = |name, handle, dtype| Given { name, handle, dtype, elements };
    let read = [given("the input", input, from)];
    buffers::check(device, &read, &[given("the output", output, to)])?;
    if elements == 0 {
        return Ok(());
    }
    // Packed integers have a copy in `i32`.
    let unpacked = device.packs(from).then(|| packed::unpack(target, from, input, elements));
    let (input, from) = (unpacked.as_ref().unwrap_or(input), device.computed(from));
    let wide = device.packs(to).then(|| packed::room(client, to, elements));
    let types = [from, device.computed(to)];
    convert(target, types, to, input, wide.as_ref().unwrap_or(output), elements);
    if let Some(wide) = wide {
        packed::pack(target, to, &wide, output, elements);
    }
    Ok(())
}

/// The same for checked buffers of types that kernels have. `wanted` is the type that the elements have in the end.
fn convert(
    target: Target<'_>,
    [from, to]: [DType; 2],
    wanted: DType,
    input: &Handle,
    output: &Handle,
    elements: usize,
) {
    let Target { client, device } = target;
    let lanes = widest_lanes(device, from.size().max(to.size()), elements);
    let vectors = elements / lanes;
    let contiguous = device.cores.is_some();
    let (cubes, units) = plain_grid(target, vectors);
    let form = CastForm {
        widening: Widening::of_sums(from, contiguous, device),
        // There a processor's own conversion would flush subnormal numbers to 0.
        bits: to == DType::BF16 && device.fuses_conversions,
        rounds: to == DType::BF16 && !device.rounds_bf16,
        range: to.integers(),
        contiguous,
        numbers: Numbers::of(from, to),
        to_bool: wanted == DType::Bool,
        to_f32: to == DType::F32,
        to_f64: to == DType::F64,
    };
    // SAFETY: both buffers hold `vectors`, and the kernel touches none beyond.
    unsafe {
        converted::launch_unchecked(
            client,
            cubes,
            units,
            lanes,
            BufferArg::from_raw_parts(input.clone(), vectors),
            BufferArg::from_raw_parts(output.clone(), vectors),
            vectors as u32,
            form,
            [elem(from), elem(to)],
        );
    }
}

/// The type in which elements are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Numbers {
    F32,
    I32,
    U32,
    I64,
}

impl Numbers {
    fn of(from: DType, to: DType) -> Self {
        match from {
            DType::I64 => Self::I64,
            DType::U32 => Self::U32,
            DType::I32 => Self::I32,
            from if !from.is_float() && !to.is_float() => Self::I32,
            _ => Self::F32,
        }
    }

    /// The least and the largest number of an integer type that this type has too.
    fn within(self, (least, most): (i64, i64)) -> (i64, i64) {
        let own = match self {
            Self::U32 => DType::U32,
            Self::I64 => DType::I64,
            Self::I32 | Self::F32 => DType::I32,
        };
        let (lowest, highest) = own.integers().unwrap_or_default();
        (least.max(lowest), most.min(highest))
    }
}

/// The compile-time options of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CastForm {
    widening: Widening,
    /// Whether the result is the upper half of the rounded f32.
    bits: bool,
    /// Otherwise, whether the kernel rounds to bf16 itself.
    rounds: bool,
    /// The least and the largest number, if the result is an integer.
    range: Option<(i64, i64)>,
    contiguous: bool,
    numbers: Numbers,
    /// Whether the result is 1 for all numbers but 0.
    to_bool: bool,
    to_f32: bool,
    to_f64: bool,
}

/// `S` and `T` may be integers, which are only converted.
#[cube(launch_unchecked)]
fn converted<S: Float, T: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<T, N>],
    vectors: u32,
    #[comptime] form: CastForm,
    #[define(S, T)] _types: [ElemType; 2],
) {
    let position = unit_position(form.contiguous);
    if position >= vectors {
        terminate!();
    }
    let elements = input[position as usize];
    output[position as usize] = match comptime!(form.numbers) {
        Numbers::F32 => of_f32::<T, N>(widen::<S, f32, N>(elements, form.widening), form),
        Numbers::I32 => of_integers::<i32, T, N>(Vector::cast_from(elements), form),
        Numbers::U32 => of_integers::<u32, T, N>(Vector::cast_from(elements), form),
        Numbers::I64 => of_integers::<i64, T, N>(Vector::cast_from(elements), form),
    };
}

/// Integers in another type. An f32 does not hold all of 32 bits.
#[cube]
fn of_integers<K: Int, T: Float, N: Size>(
    number: Vector<K, N>,
    #[comptime] form: CastForm,
) -> Vector<T, N> {
    if comptime!(form.to_bool) {
        let is_zero = number.equal(&Vector::new(K::from_int(0)));
        select_many(is_zero, Vector::new(T::from_int(0)), Vector::new(T::from_int(1)))
    } else if comptime!(form.range.is_some()) {
        let (least, most) = comptime!(form.numbers.within(form.range.unwrap_or_default()));
        let (least, most) = (Vector::new(K::from_int(least)), Vector::new(K::from_int(most)));
        let number = select_many(number.less_than(&least), least, number);
        Vector::cast_from(select_many(number.greater_than(&most), most, number))
    } else if comptime!(form.to_f64) {
        Vector::cast_from(number)
    } else {
        let number =
            if comptime!(form.to_f32) { number } else { within_f32::<K, N>(number, form.numbers) };
        // Both halves are exact in f32, so that only their sum is rounded, and not as the device rounds conversions.
        let low = number & Vector::new(K::from_int(0xffff));
        let high = Vector::<f32, N>::cast_from(number - low);
        of_f32::<T, N>(high + Vector::cast_from(low), form)
    }
}

/// A number that an f32 holds, and that is rounded like this one to 11 binary digits or fewer: where a number has more than
/// 24, the last 8 are replaced by one that says whether any of them is set.
#[cube]
fn within_f32<K: Int, N: Size>(number: Vector<K, N>, #[comptime] numbers: Numbers) -> Vector<K, N> {
    let most = Vector::<K, N>::new(K::from_int(comptime!(1i64 << 24)));
    let low = number & Vector::new(K::from_int(0xff));
    let zero = Vector::<K, N>::new(K::from_int(0));
    let sticky = select_many(low.equal(&zero), zero, Vector::new(K::from_int(0x100)));
    let short = (number - low) | sticky;
    let above = select_many(number.greater_than(&most), short, number);
    if comptime!(numbers == Numbers::U32) {
        above
    } else {
        select_many(number.less_than(&(zero - most)), short, above)
    }
}

/// Numbers in another type.
#[cube]
fn of_f32<T: Float, N: Size>(numbers: Vector<f32, N>, #[comptime] form: CastForm) -> Vector<T, N> {
    if comptime!(form.to_bool) {
        let is_zero = numbers.equal(&Vector::new(0.0f32));
        select_many(is_zero, Vector::new(T::from_int(0)), Vector::new(T::from_int(1)))
    } else if comptime!(form.range.is_some()) {
        let (least, most) = comptime!(form.numbers.within(form.range.unwrap_or_default()));
        let (least, most) = comptime!((least as i32, most as i32));
        Vector::cast_from(nearest_integers::<N>(numbers, least, most))
    } else if comptime!(form.to_f64) {
        Vector::cast_from(numbers)
    } else if comptime!(form.bits) {
        narrow::<f32, T, N>(round::<f32, f32, N>(numbers, true), Widening::EachBits)
    } else {
        round::<f32, T, N>(numbers, form.rounds)
    }
}
