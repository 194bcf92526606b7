// /// script
// dependencies = ["onnxruntime-web==1.30.0"]
//
// [tool.attention-conformance]
// implementations = ["attention"]
// ///
// ONNX Runtime for the web: the operator Attention of opset 23 in WebAssembly, in Node, behind docs/protocol.md.
//
//     npm install onnxruntime-web@1.30.0
//     attention-conformance check --command "node onnxruntime_in_node.js node_modules/onnxruntime-web"
const { readSync, writeSync } = require("node:fs");
const { createRequire } = require("node:module");
const { resolve } = require("node:path");

const ort = createRequire(`${resolve(process.argv[2])}/`)("onnxruntime-web");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
const hello = {
  protocol: 1,
  name: "onnxruntime.web",
  about: "ONNX Runtime for the web, operator Attention, in WebAssembly",
  language: "JavaScript",
  versions: { Node: process.version, "onnxruntime-web": ort.env.versions.web },
  claims: {
    scope: "op",
    features: [
      ...["core", "heads", "value-width", "cross", "key-value", "scale", "grouped"],
      ...["causal", "bool-mask", "float-mask"],
    ],
    dtypes: ["float32"],
  },
  requests: ["fit"],
};

// The model: a graph of one node, in the format of Protocol Buffers. A field is its number and kind, and its content.

const FLOAT = 1, BOOL = 9, INT = 2, OPSET = 23, FORMAT = 10; // as ONNX numbers them
const varint = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...varint(n >>> 7)]);
const whole = (field, n) => [...varint(field << 3), ...varint(n)];
const block = (field, ...parts) => [...varint((field << 3) | 2), ...varint(parts.flat().length), ...parts.flat()];
const text = (field, string) => block(field, [...Buffer.from(string)]);
const float = (field, number) => [...varint((field << 3) | 5), ...Buffer.from(Float32Array.of(number).buffer)];

function array(field, name, type, rank) {
  const shape = block(2, ...Array.from({ length: rank }, (_, axis) => block(1, text(2, `${name}_${axis}`))));
  return block(field, text(1, name), block(2, block(1, whole(1, type), shape)));
}

function model(mask, causal, scale) {
  const types = { Q: [FLOAT, 4], K: [FLOAT, 4], V: [FLOAT, 4] };
  if (mask) types.attn_mask = [mask.dtype === "BOOL" ? BOOL : FLOAT, mask.shape.length];
  const names = Object.keys(types);
  const options = [block(5, text(1, "is_causal"), whole(3, Number(causal)), whole(20, INT))];
  if (scale !== null) options.push(block(5, text(1, "scale"), float(2, scale), whole(20, 1)));
  const node = block(1, ...names.map((name) => text(1, name)), text(2, "Y"), text(4, "Attention"), ...options);
  const inputs = names.map((name) => array(11, name, ...types[name]));
  const graph = block(7, node, text(2, "attention"), ...inputs, array(12, "Y", FLOAT, 4));
  return Uint8Array.from([...whole(1, FORMAT), ...graph, ...block(8, whole(2, OPSET))]);
}

const sessions = new Map();

async function attention({ causal, scale }, { query, key, value, attn_mask: mask }) {
  const made = JSON.stringify([mask?.dtype, mask?.shape.length, causal, scale]);
  if (!sessions.has(made)) sessions.set(made, await ort.InferenceSession.create(model(mask, causal, scale)));
  const given = { Q: query, K: key, V: value, ...(mask && { attn_mask: mask }) };
  for (const name in given) {
    const { dtype, shape, data } = given[name];
    given[name] = new ort.Tensor(dtype === "BOOL" ? "bool" : "float32", data, shape);
  }
  const { Y } = await sessions.get(made).run(given);
  return { dtype: "F32", shape: Y.dims, data: Y.data };
}

// As the native operator: the last two axes of a mask are spelled out, and a scale is positive.

function fit(text) {
  const { mask, mask_shape: axes, scale } = JSON.parse(text);
  if (mask !== "none" && !axes.endsWith("Lq,Lk")) return { unsupported: "takes masks whose last axes are Lq and Lk" };
  return scale !== null && scale <= 0 ? { unsupported: "takes scales above 0" } : { case: text };
}

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
  const { __metadata__: texts, ...arrays } = JSON.parse(body.toString("utf8", 8, start));
  for (const each of Object.values(arrays)) {
    const own = body.buffer.slice(...each.data_offsets.map((at) => body.byteOffset + start + at));
    each.data = each.dtype === "BOOL" ? new Uint8Array(own) : new Float32Array(own);
  }
  return [Object.fromEntries(Object.entries(texts).map(([name, value]) => [name, JSON.parse(value)])), arrays];
}

function answer(fields, output) {
  const header = { __metadata__: {} };
  for (const name in fields) header.__metadata__[name] = JSON.stringify(fields[name]);
  const block = output ? Buffer.from(output.data.buffer, output.data.byteOffset, output.data.byteLength) : Buffer.alloc(0);
  if (output) header.output = { dtype: output.dtype, shape: output.shape, data_offsets: [0, block.length] };
  const text = Buffer.from(JSON.stringify(header)), lengths = Buffer.alloc(16);
  lengths.writeBigUInt64LE(BigInt(8 + text.length + block.length), 0);
  lengths.writeBigUInt64LE(BigInt(text.length), 8);
  const message = Buffer.concat([lengths, text, block]);
  for (let sent = 0; sent < message.length; ) sent += writeSync(1, message, sent);
}

async function serve() {
  for (;;) {
    const [fields, arrays] = request(), { number } = fields;
    try {
      if (fields.request === "hello") answer({ number, ...hello });
      else if (fields.request === "fit") answer({ number, ...fit(fields.case) });
      else if (fields.request === "run") answer({ number }, await attention(fields, arrays));
      else throw new Error(`there is no request ${fields.request}`);
    } catch (error) {
      answer({ number, error: `raised ${error.name}: ${error.message}`.split("\n")[0], exception: error.name });
    }
  }
}

serve();
