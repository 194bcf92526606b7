// Attention in plain JavaScript, behind the protocol of docs/protocol.md. It needs Node, and no packages.
//
//     attention-conformance check --command "node attention.mjs"
//
// With --wrong it divides the scores by d_k instead of by its square root.
import { readSync, writeSync } from "node:fs";

const wrong = process.argv.includes("--wrong");
const kinds = { F64: Float64Array, F32: Float32Array, BOOL: Uint8Array };
const hello = {
  protocol: 1,
  name: wrong ? "attention.mjs-wrong" : "attention.mjs",
  language: "JavaScript",
  versions: { Node: process.version },
  claims: {
    scope: "op",
    features: [
      ...["core", "heads", "value-width", "cross", "key-value", "scale", "causal"],
      ...["bool-mask", "float-mask", "key-padding", "empty-sizes", "containment"],
    ],
    dtypes: ["float64", "float32"],
  },
};

// Messages: 8 bytes of length, 8 bytes of the header's length, the header as JSON, the arrays one after another.

function bytes(count) {
  const buffer = Buffer.alloc(count);
  for (let got = 0, more; got < count; got += more) {
    more = readSync(0, buffer, got, count - got);
    if (more === 0) process.exit(0); // the judge has no more requests
  }
  return buffer;
}

const length = (buffer) => Number(buffer.readBigUInt64LE());

function request() {
  const body = bytes(length(bytes(8)));
  const start = 8 + length(body);
  const { __metadata__: texts, ...entries } = JSON.parse(body.toString("utf8", 8, start));
  const fields = {}, arrays = {};
  for (const name in texts) fields[name] = JSON.parse(texts[name]);
  for (const name in entries) {
    const { dtype, shape, data_offsets: [from, to] } = entries[name];
    const own = body.buffer.slice(body.byteOffset + start + from, body.byteOffset + start + to);
    arrays[name] = { dtype, shape, data: kinds[dtype] ? new kinds[dtype](own) : null };
  }
  return { fields, arrays };
}

function answer(fields, arrays = {}) {
  const header = { __metadata__: {} }, blocks = [];
  for (const name in fields) header.__metadata__[name] = JSON.stringify(fields[name]);
  let end = 0;
  for (const name in arrays) {
    const { dtype, shape, data } = arrays[name];
    header[name] = { dtype, shape, data_offsets: [end, (end += data.byteLength)] };
    blocks.push(Buffer.from(data.buffer));
  }
  const text = Buffer.from(JSON.stringify(header));
  const lengths = Buffer.alloc(16);
  lengths.writeBigUInt64LE(BigInt(8 + text.length + end), 0);
  lengths.writeBigUInt64LE(BigInt(text.length), 8);
  const message = Buffer.concat([lengths, text, ...blocks]);
  for (let sent = 0; sent < message.length; ) sent += writeSync(1, message, sent);
}

// Shapes that do not fit are refused: nothing is repeated or cut.

function require(array, ...shape) {
  if (array.shape.join() !== shape.join()) throw new RangeError(`an array has shape ${array.shape}, not ${shape}`);
}

function requireMask({ data, shape }, full) {
  const extents = full.slice(full.length - shape.length);
  if (!data) throw new TypeError("a mask is boolean or float");
  if (shape.length > full.length || shape.some((extent, axis) => extent !== 1 && extent !== extents[axis]))
    throw new RangeError(`a mask has shape ${shape}, which does not broadcast to ${full}`);
}

// Where the entry of a mask for one sample, head, query and key lies: its shape broadcasts to (B, H, Lq, Lk).

function place(shape, index) {
  let at = 0;
  shape.forEach((extent, axis) => {
    at = at * extent + (extent === 1 ? 0 : index[index.length - shape.length + axis]);
  });
  return at;
}

function attention({ causal, scale }, { query, key, value, attn_mask: mask, key_padding_mask: padding }) {
  const [B, H, Lq, dk] = query.shape, Lk = key.shape[2], dv = value.shape[3];
  require(key, B, H, Lk, dk);
  require(value, B, H, Lk, dv);
  if (mask) requireMask(mask, [B, H, Lq, Lk]);
  if (padding) require(padding, B, Lk);
  const factor = scale ?? 1 / (wrong ? dk : Math.sqrt(dk));
  const output = new kinds[query.dtype](B * H * Lq * dv);
  for (let b = 0; b < B; b++)
    for (let h = 0; h < H; h++)
      for (let i = 0; i < Lq; i++) {
        const head = b * H + h, scores = [], seen = [];
        for (let j = 0; j < Lk; j++) {
          if ((causal && j > i) || (padding && !padding.data[b * Lk + j])) continue;
          const entry = mask?.data[place(mask.shape, [b, h, i, j])];
          if (mask && (mask.dtype === "BOOL" ? !entry : entry === -Infinity)) continue;
          let score = 0;
          for (let c = 0; c < dk; c++) score += query.data[(head * Lq + i) * dk + c] * key.data[(head * Lk + j) * dk + c];
          scores.push(score * factor + (mask && mask.dtype !== "BOOL" ? entry : 0));
          seen.push(j);
        }
        const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity); // no keys: the output stays zero
        const weights = scores.map((score) => Math.exp(score - largest));
        const sum = weights.reduce((a, b) => a + b, 0);
        for (let c = 0; c < dv; c++) {
          let mean = 0;
          seen.forEach((j, n) => (mean += (weights[n] / sum) * value.data[(head * Lk + j) * dv + c]));
          output[(head * Lq + i) * dv + c] = mean;
        }
      }
  return { dtype: query.dtype, shape: [B, H, Lq, dv], data: output };
}

for (;;) {
  const { fields, arrays } = request();
  const { number } = fields;
  try {
    if (fields.request === "hello") answer({ number, ...hello });
    else if (fields.request === "run") answer({ number }, { output: attention(fields, arrays) });
    else throw new Error(`there is no request ${fields.request}`);
  } catch (error) {
    answer({ number, error: `raised ${error.name}: ${error.message}`, exception: error.name });
  }
}
