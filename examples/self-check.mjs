// Compares a bundle's outputs on this machine with the float64 sample in DIR/parity.safetensors. Needs ONNX Runtime alone:
//   node self-check.mjs DIR [PROVIDER]                               with onnxruntime-node
//   await selfCheck(ort, session, await response.arrayBuffer())      with onnxruntime-web
// safetensors: 8 bytes with the size of a JSON header, the header, and little-endian arrays.

const STORED = { F32: Float32Array, F64: Float64Array, I64: BigInt64Array, I32: Int32Array, I8: Int8Array };
const FEEDS = { int64: [BigInt64Array, BigInt], int32: [Int32Array, Number], float32: [Float32Array, Number] };
const TOKENS = ["sequence_length", "num_frames", "total_sequence_length", "max_sequence_length", "encoder_sequence_length"];
const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

function read(buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    tensors[name] = { dims: shape, data: new STORED[dtype](buffer.slice(start + from, start + to)) };
  }
  return { sample: JSON.parse(__metadata__["posexport.sample"]), tensors };
}

/** Elements `from` to `to` of one axis; the whole tensor without that axis (-1). */
function slice({ dims, data }, axis, from, to) {
  if (axis < 0) return { dims, data };
  const inner = product(dims.slice(axis + 1));
  const index = (at) => Math.floor(at / inner) % dims[axis];
  return { dims: dims.with(axis, to - from), data: data.filter((_, at) => index(at) >= from && index(at) < to) };
}

/** One element of an output, flattened to [batch and tokens, channels]; calls are concatenated over the tokens. */
function element(results, starts, { name, axes }, length, row, column) {
  const along = axes.indexOf("sequence_length");
  const dims = along < 0 ? results.at(-1)[name].dims : results.at(-1)[name].dims.with(along, length);
  const first = ["batch_size", ...TOKENS].map((axis) => axes.indexOf(axis)).filter((axis) => axis >= 0);
  const order = [...first, ...[...dims.keys()].filter((axis) => !first.includes(axis))];
  const index = Array(dims.length).fill(0);
  if (order.length > first.length) index[order.pop()] = column;
  for (const axis of order.reverse()) {
    index[axis] = row % dims[axis];
    row = Math.floor(row / dims[axis]);
  }
  const call = along < 0 ? results.length - 1 : starts.findLastIndex((start) => start <= index[along]);
  if (along >= 0) index[along] -= starts[call];
  const output = results[call][name];
  return Number(output.data[index.reduce((flat, at, axis) => flat * output.dims[axis] + at, 0)]);
}

/** The largest error of every output at every point, as a share of the largest element: [{ point, output, error, tolerance, passed }, ...]. */
export async function selfCheck(ort, session, buffer) {
  const { sample, tensors } = read(buffer);
  const inputs = sample.inputs.filter(({ name }) => session.inputNames.includes(name)); // others have defaults
  const tensor = ({ dtype }, { dims, data }) => new ort.Tensor(dtype, FEEDS[dtype][0].from(data, FEEDS[dtype][1]), dims);
  // a graph for transformers.js requires it: the logits of all tokens
  const all = session.inputNames.includes("num_logits_to_keep") ? { num_logits_to_keep: new ort.Tensor("int64", [0n], []) } : {};
  const checked = [];
  for (const [number, point] of sample.points.entries()) {
    if (point.position_ids_given && !session.inputNames.includes("position_ids")) continue;
    const [results, starts] = [[], []];
    for (const added of point.calls.length ? point.calls : [point.length]) {
      const start = starts.length ? starts.at(-1) + point.calls[starts.length - 1] : 0;
      const feeds = { ...all };
      for (const spec of inputs) {
        let input = tensors[`${number}.in.${spec.name}`];
        if (point.calls.length) {
          input = slice(input, spec.axes.indexOf("sequence_length"), start, start + added);
          input = slice(input, spec.axes.indexOf("total_sequence_length"), 0, start + added);
        }
        const present = spec.name.replace("past_key_values", "present");
        feeds[spec.name] = spec.role === "cache" && start ? results.at(-1)[present] : tensor(spec, input);
      }
      starts.push(start);
      results.push(await session.run(feeds));
    }
    for (const [which, output] of sample.outputs.filter(({ compared }) => compared !== false).entries()) {
      if (output.axes.includes("max_sequence_length")) continue; // a static KV cache, with unused slots
      const [rows, columns, values] = ["rows", "columns", "values"].map((part) => tensors[`${number}.out.${output.name}.${part}`].data);
      const { scale, tolerance } = sample.truths[number][which];
      const length = results.at(-1)[output.name].dims[output.axes.indexOf("sequence_length")] + starts.at(-1);
      const gaps = [...values].map((value, at) =>
        Math.abs(element(results, starts, output, length, rows[Math.floor(at / columns.length)], columns[at % columns.length]) - value));
      const error = gaps.some(Number.isNaN) ? Infinity : Math.max(0, ...gaps) / scale;
      checked.push({ point, output: output.name, error, tolerance, passed: error <= tolerance });
    }
  }
  for (const point of sample.refusals) { // inputs longer than the limit, which must be an error
    const sizes = { batch_size: point.batch, sequence_length: point.length, total_sequence_length: point.length };
    const feeds = { ...all };
    for (const spec of inputs) {
      const dims = spec.axes.map((axis) => (typeof axis === "number" ? axis : (sizes[axis] ?? 0)));
      feeds[spec.name] = tensor(spec, { dims, data: Array(product(dims)).fill(1) });
    }
    const passed = await session.run(feeds).then(() => false, () => true);
    checked.push({ point, output: "refusal", error: passed ? 0 : Infinity, tolerance: 0, passed });
  }
  return checked;
}

if (typeof process !== "undefined" && process.argv[1]?.endsWith("self-check.mjs")) {
  const { readFile } = await import("node:fs/promises");
  const ort = await import("onnxruntime-node");
  const [folder, provider = "cpu"] = process.argv.slice(2);
  const session = await ort.InferenceSession.create(`${folder}/model.onnx`, { executionProviders: [provider] });
  const { buffer } = new Uint8Array(await readFile(`${folder}/parity.safetensors`));
  const checked = await selfCheck(ort, session, buffer);
  for (const { point, output, error, tolerance, passed } of checked) {
    const how = point.calls.length ? `, in calls of ${point.calls}` : "";
    console.log(`${passed ? "pass" : "FAIL"}  ${output}, length ${point.length}, batch ${point.batch}${how}: ${error.toExponential(1)} (${tolerance})`);
  }
  process.exitCode = checked.every(({ passed }) => passed) ? 0 : 1;
}
