// Reads vectors of `attention-conformance vectors write DIR` in Rust, without crates, and judges an attention by them:
//
//     rustc --edition 2021 -O vectors.rs && ./vectors DIR
use std::collections::HashMap;
use std::{env, fs, io, process};

struct Array {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Array {
    fn f32(&self) -> Vec<f32> {
        self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
    fn f64(&self) -> Vec<f64> {
        self.bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

struct Vector {
    fields: HashMap<String, String>, // JSON texts, such as fields["causal"] == "true"
    arrays: HashMap<String, Array>,
}

/// The part of JSON that a header needs: objects, strings, and lists of natural numbers.
struct Header<'a>(&'a str);

impl Header<'_> {
    fn take(&mut self, c: char) -> bool {
        self.0 = self.0.trim_start();
        let rest = self.0.strip_prefix(c);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }
    fn string(&mut self) -> String {
        assert!(self.take('"'), "this is no file of a vector");
        let (mut found, mut characters) = (String::new(), self.0.char_indices());
        while let Some((at, c)) = characters.next() {
            match c {
                '"' => {
                    self.0 = &self.0[at + 1..];
                    break;
                }
                '\\' => found.extend(characters.next().map(|(_, escaped)| escaped)),
                _ => found.push(c),
            }
        }
        found
    }
    fn numbers(&mut self) -> Vec<usize> {
        let end = self.0.find(']').expect("this is no file of a vector");
        let list = self.0[..end].trim_start().trim_start_matches('[');
        let found = list.split(',').filter_map(|number| number.trim().parse().ok()).collect();
        self.0 = &self.0[end + 1..];
        found
    }
    fn object(&mut self, mut member: impl FnMut(&mut Self, String)) {
        assert!(self.take('{'), "this is no file of a vector");
        while !self.take('}') {
            self.take(',');
            let name = self.string();
            self.take(':');
            member(self, name);
        }
    }
}

fn read(file: &std::path::Path) -> io::Result<Vector> {
    let all = fs::read(file)?;
    let start = 8 + u64::from_le_bytes(all[..8].try_into().unwrap()) as usize;
    let mut vector = Vector { fields: HashMap::new(), arrays: HashMap::new() };
    Header(std::str::from_utf8(&all[8..start]).expect("text")).object(|header, name| {
        if name == "__metadata__" {
            return header.object(|header, field| drop(vector.fields.insert(field, header.string())));
        }
        let mut array = Array { shape: vec![], bytes: vec![] };
        header.object(|header, part| match part.as_str() {
            "shape" => array.shape = header.numbers(),
            "data_offsets" => {
                let range = header.numbers();
                array.bytes = all[start + range[0]..start + range[1]].to_vec();
            }
            _ => drop(header.string()),
        });
        vector.arrays.insert(name, array);
    });
    Ok(vector)
}

/// NaN and infinity have to be the same; any other number may be off by its bound.
fn holds(vector: &Vector, got: &[f32]) -> bool {
    let (expected, bound) = (vector.arrays["expected.output"].f64(), vector.arrays["bound.output"].f64());
    let right = |i: usize| {
        let number = f64::from(got[i]);
        let same = number == expected[i] || (number.is_nan() && expected[i].is_nan());
        same || (number - expected[i]).abs() <= bound[i]
    };
    got.len() == expected.len() && (0..got.len()).all(right)
}

fn attention(given: &Vector) -> Vec<f32> {
    let [query, key, value] = ["query", "key", "value"].map(|name| &given.arrays[name]);
    let (q, k, v) = (query.f32(), key.f32(), value.f32());
    let (lq, dk, lk, dv) = (query.shape[2], query.shape[3], key.shape[2], value.shape[3]);
    let factor = given.fields["scale"].parse().unwrap_or(1.0 / (dk as f64).sqrt());
    let mut output = vec![];
    for row in 0..query.shape[0] * query.shape[1] * lq {
        let (head, seen) = (row / lq, if given.fields["causal"] == "true" { lk.min(row % lq + 1) } else { lk });
        let product = |j: usize| (0..dk).map(|c| f64::from(q[row * dk + c]) * f64::from(k[(head * lk + j) * dk + c])).sum();
        let scores: Vec<f64> = (0..seen).map(product).map(|score: f64| factor * score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mean = |c: usize| (0..seen).map(|j| weights[j] / sum * f64::from(v[(head * lk + j) * dv + c])).sum::<f64>();
        output.extend((0..dv).map(|c| mean(c) as f32));
    }
    output
}

fn main() -> io::Result<()> {
    let (mut hold, mut fail, mut unsupported) = (0, 0, 0);
    for entry in fs::read_dir(env::args().nth(1).expect("give the folder of the vectors"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|suffix| suffix != "safetensors") {
            continue;
        }
        let vector = read(&path)?;
        if vector.arrays.contains_key("attn_mask") || vector.fields["refused"] == "true" {
            unsupported += 1;
        } else if holds(&vector, &attention(&vector)) {
            hold += 1;
        } else {
            fail += 1;
        }
    }
    println!("{hold} hold, {fail} fail, {unsupported} are not supported");
    process::exit(i32::from(fail > 0));
}
