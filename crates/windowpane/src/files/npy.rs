//! NumPy's `.npy` format: a short header, then the elements exactly as they are in memory.
//!
//! ```text
//! magic     \x93NUMPY, then the version: 1.0, 2.0 or 3.0
//! length    of the header: 2 bytes little-endian in version 1.0, 4 bytes later
//! header    {'descr': '<f4', 'fortran_order': False, 'shape': (1, 6, 6, 2), }
//! elements
//! ```
//!
//! The header is a Python dictionary with exactly these keys in any order. The parser reads each character once, so
//! that no header can slow it down.

use std::io::{self, Read, Write};
use std::path::Path;

use half::bf16;
use windowpane_geometry::DType;

use super::{Source, file_error, unwritable, write};
use crate::element::{HostBuffer, with_element};
use crate::tensor::{count, element_slice};
use crate::{Device, Result, Tensor};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that is read, which is the limit of version 1.0. Only arrays of records need longer ones.
const LONGEST_HEADER: usize = 65_535;

/// The offset of the elements in a file that is written is a multiple of this.
const ALIGNMENT: usize = 64;

/// The types that NumPy and this crate share, as a header spells them.
const TYPES: [(&str, DType); 11] = [
    ("<f8", DType::F64),
    ("<f4", DType::F32),
    ("<f2", DType::F16),
    ("<i8", DType::I64),
    ("<i4", DType::I32),
    ("<u4", DType::U32),
    ("<i2", DType::I16),
    ("<u2", DType::U16),
    ("|i1", DType::I8),
    ("|u1", DType::U8),
    ("|b1", DType::Bool),
];

// Files contain little-endian numbers, and elements are read and written without conversion.
const _: () = assert!(cfg!(target_endian = "little"));

impl Tensor {
    /// Reads a NumPy `.npy` file.
    ///
    /// The file's type is kept. NumPy has no bf16: read f32 and convert it with
    /// [`to_dtype`](Self::to_dtype). Nothing is read beyond the header and the elements, so that
    /// pipes work too.
    pub fn read_npy(device: &Device, path: impl AsRef<Path>) -> Result<Self> {
        Self::read_npy_source(device, Source::open(path.as_ref())?)
    }

    /// Reads what [`read_npy`](Self::read_npy) reads from any reader, which may have more to read after it.
    ///
    /// ```
    /// use windowpane::{Device, Tensor};
    ///
    /// let host = Device::host();
    /// let mut bytes = Vec::new();
    /// Tensor::from_slice(&host, &[1.0f32, 2.0], [2])?.write_npy_to(&mut bytes)?;
    /// let x = Tensor::read_npy_from(&host, &bytes[..])?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn read_npy_from(device: &Device, from: impl Read) -> Result<Self> {
        Self::read_npy_source(device, Source::nameless(from))
    }

    fn read_npy_source(device: &Device, mut source: Source<impl Read>) -> Result<Self> {
        let path = &*source.path.clone();
        let (header, header_bytes) =
            Header::read(&mut source.from).map_err(|e| file_error(path, e))?;
        let Header { descr, fortran_order, dims } = header;
        let Some((_, dtype)) = TYPES.into_iter().find(|(name, _)| *name == descr) else {
            let descr = brief(&descr);
            return Err(file_error(
                path,
                format!(
                    "holds {descr}; save it as little-endian float64, 32, 16, int64, 32, 16, 8, uint32, 16, 8 or bool"
                ),
            ));
        };
        device.require(dtype)?;
        let elements = count(&dims)
            .map_err(|error| file_error(path, format!("has a shape that is too large: {error}")))?;
        // With at most one axis longer than 1, both orders are the same.
        if fortran_order && elements > 0 && dims.iter().filter(|dim| **dim > 1).count() > 1 {
            return Err(file_error(path, "is in Fortran order; save np.ascontiguousarray of it"));
        }
        source.expect(header_bytes, elements as u64 * dtype.size() as u64)?;
        with_element!(dtype, T => {
            Self::from_elements(device, source.elements::<T>(elements)?.into(), dims)
        })
    }

    /// Writes a NumPy `.npy` file; bf16 is written as f32.
    pub fn write_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let elements = self.read()?;
        write(path.as_ref(), |file| write_to(file, &elements, self.dims()))
    }

    /// Writes the same bytes as [`write_npy`](Self::write_npy) to any writer.
    ///
    /// ```
    /// use windowpane::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0], [2])?;
    /// let mut bytes = Vec::new();
    /// x.write_npy_to(&mut bytes)?;
    /// assert_eq!(bytes.len(), 128 + 2 * 4);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn write_npy_to(&self, mut to: impl Write) -> Result<()> {
        let elements = self.read()?;
        write_to(&mut to, &elements, self.dims()).map_err(unwritable)
    }
}

fn write_to(to: &mut impl Write, elements: &HostBuffer, dims: &[usize]) -> io::Result<()> {
    let stored = if elements.dtype() == DType::BF16 { DType::F32 } else { elements.dtype() };
    let descr = TYPES.into_iter().find(|(_, dtype)| *dtype == stored).map(|(descr, _)| descr);
    let descr = descr.ok_or_else(|| io::Error::other(format!("NumPy has no {stored}")))?;
    to.write_all(&header(descr, dims)?)?;
    if elements.dtype() != DType::BF16 {
        return to.write_all(elements.bytes());
    }
    for part in element_slice::<bf16>(elements).chunks(1 << 16) {
        let wide: Vec<f32> = part.iter().map(|x| x.to_f32()).collect();
        to.write_all(bytemuck::cast_slice(&wide))?;
    }
    Ok(())
}

/// Everything before the elements: magic, version, length and header.
fn header(descr: &str, dims: &[usize]) -> io::Result<Vec<u8>> {
    let shape = match dims {
        [dim] => format!("({dim},)"),
        dims => format!("({})", dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    };
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let before = MAGIC.len() + 2 + 2;
    // One byte is for the newline at the end.
    let whole = (before + text.len() + 1).next_multiple_of(ALIGNMENT);
    let length = u16::try_from(whole - before)
        .map_err(|_| io::Error::other("it has more dimensions than a header can say"))?;
    let mut bytes = Vec::with_capacity(whole);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(whole - 1, b' ');
    bytes.push(b'\n');
    Ok(bytes)
}

/// The fields of a header, which say how to read the elements.
#[derive(Debug, PartialEq)]
struct Header {
    /// The type as NumPy spells it.
    descr: String,
    fortran_order: bool,
    dims: Vec<usize>,
}

impl Header {
    /// Reads a header and returns it with the number of bytes before the elements, or says why it is invalid.
    fn read(from: &mut impl Read) -> Result<(Self, u64), String> {
        let mut start = [0; MAGIC.len() + 2];
        fill(from, &mut start)?;
        let (magic, version) = start.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(no_npy("it does not begin like one"));
        }
        let mut length = [0; 4];
        let digits = match version {
            [1, 0] => 2,
            [2 | 3, 0] => 4,
            other => {
                let (major, minor) = (other[0], other[1]);
                return Err(format!(
                    "has version {major}.{minor} of the .npy format; save it in 1.0, 2.0 or 3.0"
                ));
            }
        };
        fill(from, &mut length[..digits])?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST_HEADER {
            return Err(format!(
                "has a header of {length} bytes and the longest allowed has {LONGEST_HEADER}; save \
                 plain numbers with numpy.save"
            ));
        }
        let mut text = vec![0; length];
        fill(from, &mut text)?;
        let text = str::from_utf8(&text).ok().filter(|text| text.is_ascii());
        let text = text.ok_or_else(|| no_npy("its header is not ASCII text"))?;
        Ok((Self::parse(text)?, (start.len() + digits + length) as u64))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut text = Text(text);
        let (mut descr, mut fortran_order, mut dims) = (None, None, None);
        text.expect('{')?;
        while !text.takes('}') {
            let key = text.string()?;
            text.expect(':')?;
            let again = match key {
                "descr" => descr.replace(text.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(text.boolean()?).is_some(),
                "shape" => dims.replace(text.shape()?).is_some(),
                other => {
                    return Err(no_npy(format!("its header has the unknown key {}", brief(other))));
                }
            };
            if again {
                return Err(no_npy(format!("its header has the key '{key}' twice")));
            }
            if !text.takes(',') {
                text.expect('}')?;
                break;
            }
        }
        text.end()?;
        match (descr, fortran_order, dims) {
            (Some(descr), Some(fortran_order), Some(dims)) => {
                Ok(Self { descr, fortran_order, dims })
            }
            _ => Err(no_npy("its header lacks 'descr', 'fortran_order' or 'shape'")),
        }
    }
}

/// Fills `bytes`.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), String> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => no_npy("it ends before its header does"),
        _ => format!("cannot be read: {error}"),
    })
}

fn no_npy(reason: impl std::fmt::Display) -> String {
    format!("is no .npy file: {reason}; write one with numpy.save")
}

/// The start of a text, short enough for a message.
fn brief(text: &str) -> String {
    const MOST: usize = 24;
    let more = if text.len() > MOST { "…" } else { "" };
    format!("{:?}{more}", text.chars().take(MOST).collect::<String>())
}

/// The part of a header that is not parsed yet; it is ASCII.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    /// Skips white space, then consumes this character if it is next.
    fn takes(&mut self, next: char) -> bool {
        self.0 = self.0.trim_ascii_start();
        let rest = self.0.strip_prefix(next);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, next: char) -> Result<(), String> {
        if self.takes(next) { Ok(()) } else { Err(self.unlike(&format!("`{next}`"))) }
    }

    fn unlike(&self, expected: &str) -> String {
        let found = self.0.chars().next().map_or("its end".into(), |c| format!("{c:?}"));
        no_npy(format!("its header has {found} where {expected} belongs"))
    }

    fn end(&mut self) -> Result<(), String> {
        self.0 = self.0.trim_ascii_start();
        if self.0.is_empty() { Ok(()) } else { Err(self.unlike("its end")) }
    }

    /// Consumes and returns the characters before the first unwanted one.
    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let end = self.0.find(|c| !wanted(c)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let Some(quote) = ['\'', '"'].into_iter().find(|quote| self.takes(*quote)) else {
            return Err(self.unlike("a quoted text"));
        };
        let text = self.take_while(|c| c != quote);
        self.expect(quote)?;
        Ok(text)
    }

    /// The type. A list or a tuple, which describes several fields or arrays of arrays, is refused.
    fn descr(&mut self) -> Result<String, String> {
        if self.takes('[') || self.takes('(') {
            let reason =
                "holds records or arrays of arrays; save each field as an array of its own";
            return Err(reason.into());
        }
        self.string().map(Into::into)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.0 = self.0.trim_ascii_start();
        for (name, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(name) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err(self.unlike("True or False"))
    }

    fn shape(&mut self) -> Result<Vec<usize>, String> {
        let mut dims = Vec::new();
        self.expect('(')?;
        while !self.takes(')') {
            dims.push(self.extent()?);
            // A tuple with one element needs a trailing comma.
            if !self.takes(',') {
                self.expect(if dims.len() == 1 { ',' } else { ')' })?;
                break;
            }
        }
        Ok(dims)
    }

    fn extent(&mut self) -> Result<usize, String> {
        let negative = self.takes('-');
        self.0 = self.0.trim_ascii_start();
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.unlike("a whole number"));
        }
        if negative {
            return Err(format!("has the extent -{}; extents are at least 0", brief(digits)));
        }
        // Python 2 wrote an `L` after long integers.
        self.takes('L');
        digits.parse().map_err(|_| {
            format!(
                "has the extent {}, which is too large to be counted; save a smaller array",
                brief(digits)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    const PLAIN: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

    /// A file with this version, header text and elements.
    fn file(version: u8, header: impl AsRef<[u8]>, elements: &[u8]) -> Vec<u8> {
        let header = header.as_ref();
        let length = (header.len() as u32).to_le_bytes();
        let digits = if version == 1 { 2 } else { 4 };
        [MAGIC, &[version, 0], &length[..digits], header, elements].concat()
    }

    fn read(bytes: &[u8]) -> Result<Tensor> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        fs::write(&path, bytes).unwrap();
        Tensor::read_npy(&Device::host(), &path)
    }

    #[track_caller]
    fn refused(bytes: &[u8], saying: &str) {
        let message = read(bytes).expect_err(saying).to_string();
        assert!(message.contains("x.npy: ") && message.contains(saying), "{saying:?}: {message}");
        assert!(message.len() < 400 && message.lines().count() == 1, "{message}");
    }

    #[track_caller]
    fn refused_header(header: &str, saying: &str) {
        refused(&file(1, header, &[0; 24]), saying);
    }

    /// Headers with nested brackets once took time that doubled with each bracket.
    #[test]
    fn no_header_keeps_the_reader_busy() {
        let start = Instant::now();
        for nested in ["{", "[", "(", "{'descr':[", "-", "'", "{'shape':(", "{'a':{"] {
            for times in [24, 30, LONGEST_HEADER / nested.len()] {
                let text = nested.repeat(times);
                refused_header(&text, "x.npy");
                refused_header(&format!("{{'descr': {text}"), "x.npy");
                refused_header(&format!("{{'shape': ({text}"), "x.npy");
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn every_version_and_every_spelling_is_read() {
        let elements: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        for header in [
            PLAIN,
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}",
            "{\"shape\": (2,3,), \"fortran_order\":False,\"descr\":\"<f4\"}   \n",
            " {'shape' : ( 2L , 3L ) ,\t'descr' : '<f4' , 'fortran_order' : False , } \n",
        ] {
            for version in [1, 2, 3] {
                let x = read(&file(version, header, &elements)).unwrap();
                assert_eq!(x.dims(), [2, 3]);
                assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
            }
        }
        let dims = |shape: &str, bytes: usize| {
            let header = PLAIN.replace("(2, 3)", shape);
            read(&file(1, header, &vec![0; bytes])).unwrap().dims().to_vec()
        };
        assert_eq!(dims("()", 4), [0; 0]);
        assert_eq!(dims("(6,)", 24), [6]);
        assert_eq!(dims("(0, 3)", 0), [0, 3]);
        assert_eq!(dims("(0, 18446744073709551615)", 0), [0, usize::MAX]);
    }

    /// The expected bytes were written by NumPy 2.4.6.
    #[test]
    fn a_file_is_written_as_numpy_writes_it() {
        let host = Device::host();
        let x = Tensor::from_slice(&host, &[1.0f64, -2.0], [1, 2]).unwrap();
        let mut bytes = Vec::new();
        x.write_npy_to(&mut bytes).unwrap();
        let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }";
        let expected = [
            b"\x93NUMPY\x01\x00\x76\x00".to_vec(),
            format!("{text:<117}\n").into_bytes(),
            bytemuck::cast_slice(&[1f64, -2.0]).to_vec(),
        ];
        assert_eq!(bytes, expected.concat());
        for (dims, shape) in [(&[][..], "()"), (&[1], "(1,)"), (&[1, 1, 1], "(1, 1, 1)")] {
            let header = header("|u1", dims).unwrap();
            let text = String::from_utf8_lossy(&header);
            assert!(text.contains(&format!("'shape': {shape}, ")), "{text}");
            assert_eq!((header.len() % ALIGNMENT, header.last()), (0, Some(&b'\n')), "{text}");
        }
        assert!(header("|u1", &[1; 40_000]).is_err());
    }

    #[test]
    fn fortran_order_is_read_where_it_changes_nothing() {
        let fortran = |shape: &str| PLAIN.replace("False", "True").replace("(2, 3)", shape);
        for shape in ["(6,)", "(1, 6)", "(6, 1, 1)"] {
            assert_eq!(read(&file(1, fortran(shape), &[0; 24])).unwrap().len(), 6);
        }
        assert!(read(&file(1, fortran("(2, 0, 3)"), &[])).unwrap().is_empty());
        refused_header(&fortran("(2, 3)"), "Fortran order; save np.ascontiguousarray");
    }

    #[test]
    fn files_that_are_cut_or_too_long_are_refused() {
        let whole = file(1, PLAIN, &[0; 24]);
        assert!(read(&whole).is_ok());
        let header = whole.len() - 24;
        for end in 0..header {
            refused(&whole[..end], "is no .npy file: it ends before its header does");
        }
        for end in header..whole.len() {
            refused(&whole[..end], "is cut short");
        }
        refused(&file(1, PLAIN, &[0; 25]), "1 byte more");
        refused(&file(2, PLAIN, &[0; 1000]), "976 bytes more");
    }

    #[test]
    fn lengths_of_headers_are_bounded() {
        for length in [65_536, u32::MAX] {
            let bytes = [MAGIC, &[2, 0], &length.to_le_bytes(), b"{"].concat();
            refused(&bytes, &format!("a header of {length} bytes"));
        }
        refused(&file(2, vec![b' '; LONGEST_HEADER], &[]), "its header has its end where `{`");
    }

    #[test]
    fn types_that_there_are_not_are_refused() {
        for descr in [">f4", "|O", "<f16", "<c8", "<u8", ">i8", "<U3", "|S7", "<M8[ns]", ""] {
            let holds = format!("holds {descr:?}; save it as little-endian");
            refused_header(&PLAIN.replace("<f4", descr), &holds);
        }
        let records = "[('a', '<f4'), ('b', '<i4', (2,))]";
        for descr in [records, "('<f4', (2,))", "[]"] {
            refused_header(&PLAIN.replace("'<f4'", descr), "holds records");
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let shape = |shape: &str, saying: &str| {
            refused_header(&PLAIN.replace("(2, 3)", shape), saying);
        };
        shape("(-1, 3)", "has the extent -\"1\"");
        shape("(2, 99999999999999999999)", "too large to be counted");
        shape("(4294967296, 4294967296)", "has a shape that is too large");
        shape("(2147483648,)", "the largest allowed, 2147483647");
        shape("(1000, 1000)", "is cut short");
        shape("(6)", "has ')' where `,` belongs");
        shape("[2, 3]", "has '[' where `(` belongs");
        shape("(2.0, 3)", "has '.' where `,` belongs");
        shape("(2, 3.0)", "has '.' where `)` belongs");
        shape("(True, 3)", "has 'T' where a whole number belongs");
        shape("((2, 3), )", "has '(' where a whole number belongs");
        shape("(2, , 3)", "has ',' where a whole number belongs");
        shape("(2, 3", "has '}' where a whole number belongs");
        shape("6", "has '6' where `(` belongs");
    }

    #[test]
    fn headers_of_another_grammar_are_refused() {
        refused_header("", "has its end where `{` belongs");
        refused_header("{}", "lacks 'descr', 'fortran_order' or 'shape'");
        refused_header("{'descr': '<f4'}", "lacks");
        refused_header(&PLAIN.replace("'descr'", "descr"), "has 'd' where a quoted text belongs");
        refused_header(&PLAIN.replace("False", "0"), "has '0' where True or False belongs");
        refused_header(&PLAIN.replace("'<f4'", "None"), "has 'N' where a quoted text belongs");
        refused_header(&PLAIN.replace("'<f4'", "'<f4"), "x.npy: ");
        refused_header(&PLAIN.replace("'shape'", "'Shape'"), "the unknown key \"Shape\"");
        refused_header(&PLAIN.replace("'shape'", "'descr'"), "x.npy: ");
        refused_header(
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
            "the key 'descr' twice",
        );
        refused_header(&format!("{PLAIN} {PLAIN}"), "has '{' where its end belongs");
        refused_header(&format!("{PLAIN}\0"), "where its end belongs");
        refused(&file(3, "{'descr': '<f4', 'é': 1}", &[]), "its header is not ASCII text");
        refused(&file(1, b"\xff\xfe", &[]), "its header is not ASCII text");
        for version in [0, 4, 255] {
            refused(&file(version, PLAIN, &[0; 24]), &format!("version {version}.0"));
        }
        refused(&[MAGIC, &[1, 1], &[0; 40]].concat(), "version 1.1");
        refused(b"PK\x03\x04 this is an .npz file", "it does not begin like one");
    }
}
