// Reads vectors of `attention-conformance vectors write DIR` in plain JavaScript; Node, and no packages.
//
//     node vectors.mjs DIR [ANSWERS]
//
// Replace `attention` by your own. Answers are compared here, and written into the folder ANSWERS if one is given.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const kinds = { F64: Float64Array, F32: Float32Array, I64: BigInt64Array, BOOL: Uint8Array };

export function read(file) {
  const bytes = readFileSync(file);
  const start = 8 + Number(bytes.readBigUInt64LE());
  const { __metadata__: texts, ...entries } = JSON.parse(bytes.toString("utf8", 8, start));
  const fields = Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, JSON.parse(text)]));
  const arrays = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    const own = bytes.buffer.slice(bytes.byteOffset + start + from, bytes.byteOffset + start + to);
    arrays[name] = { dtype, shape, data: new kinds[dtype](own) };
  }
  return { fields, arrays };
}

export function write(file, output) {
  const entry = { dtype: output.dtype, shape: output.shape, data_offsets: [0, output.data.byteLength] };
  const header = Buffer.from(JSON.stringify({ output: entry }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(file, Buffer.concat([length, header, Buffer.from(output.data.buffer)]));
}

// NaN and infinity have to be the same; any other number may be off by its bound.
export function holds({ arrays }, output) {
  const expected = arrays["expected.output"], bound = arrays["bound.output"];
  return (
    output.shape.join() === expected.shape.join() &&
    output.data.every((got, i) => Object.is(got, expected.data[i]) || Math.abs(got - expected.data[i]) <= bound.data[i])
  );
}

// Null where an option is not supported; this one knows scale and causal flag.
export function attention({ scale, causal, refused }, { query, key, value, attn_mask }) {
  if (attn_mask || refused) return null;
  const [B, H, Lq, dk] = query.shape, Lk = key.shape[2], dv = value.shape[3];
  const data = new kinds[query.dtype](B * H * Lq * dv);
  for (let row = 0; row < B * H * Lq; row++) {
    const head = Math.floor(row / Lq), seen = causal ? Math.min(Lk, (row % Lq) + 1) : Lk, scores = [];
    for (let j = 0; j < seen; j++) {
      let score = 0;
      for (let c = 0; c < dk; c++) score += query.data[row * dk + c] * key.data[(head * Lk + j) * dk + c];
      scores.push(score * (scale ?? 1 / Math.sqrt(dk)));
    }
    const top = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    const weights = scores.map((score) => Math.exp(score - top));
    const sum = weights.reduce((a, b) => a + b, 0);
    for (let c = 0; c < dv; c++) {
      let mean = 0;
      weights.forEach((weight, j) => (mean += (weight / sum) * value.data[(head * Lk + j) * dv + c]));
      data[row * dv + c] = mean;
    }
  }
  return { dtype: query.dtype, shape: [B, H, Lq, dv], data };
}

const [folder, answers] = process.argv.slice(2);
const count = { hold: 0, fail: 0, unsupported: 0 };
if (answers) mkdirSync(answers, { recursive: true });
for (const name of readdirSync(folder).filter((each) => each.endsWith(".safetensors"))) {
  const vector = read(join(folder, name));
  const output = attention(vector.fields, vector.arrays);
  count[output === null ? "unsupported" : holds(vector, output) ? "hold" : "fail"]++;
  if (answers && output) write(join(answers, name), output);
}
console.log(`${count.hold} hold, ${count.fail} fail, ${count.unsupported} are not supported`);
process.exitCode = count.fail ? 1 : 0;
