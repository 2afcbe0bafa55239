// onnxruntime-web (WebAssembly) in a browser: the page takes its job from the server and gives the answer back.
import * as ort from "/ort/ort.wasm.min.mjs";
import { encode, generate } from "/onnx.mjs";
import { selfCheck } from "/self-check.mjs";

ort.env.wasm.wasmPaths = "/ort/";
ort.env.wasm.numThreads = 1; // more need the headers of a cross-origin isolated page

async function run(job) {
  const answer = { embeddings: [], external: [], tokens: [], logits: [], encodings: {}, precisions: {} };
  const encoder = await ort.InferenceSession.create("/encoder/model.onnx", { executionProviders: ["wasm"] });
  for (const { input_ids, attention_mask } of job.batches) {
    const { sentence_embedding } = await encode(ort, encoder, input_ids, attention_mask);
    answer.embeddings.push(Array.from(sentence_embedding.data));
  }
  await encoder.release();
  // a browser finds no file beside the model: weights in a file of their own are named
  const external = await ort.InferenceSession.create("/external/model.onnx", {
    executionProviders: ["wasm"],
    externalData: [{ path: "model.onnx.data", data: "/external/model.onnx.data" }],
  });
  for (const { input_ids, attention_mask } of job.batches) {
    const { sentence_embedding } = await encode(ort, external, input_ids, attention_mask);
    answer.external.push(Array.from(sentence_embedding.data));
  }
  await external.release();
  const decoder = await ort.InferenceSession.create("/decoder/model.onnx", { executionProviders: ["wasm"] });
  for (const prompt of job.prompts) {
    const { tokens, firstLogits } = await generate(ort, decoder, prompt, job.new_tokens);
    answer.tokens.push(tokens);
    answer.logits.push(Array.from(firstLogits));
  }
  // every encoding of positions, in a small encoder
  for (const name of Object.keys(job.encodings)) {
    const small = await ort.InferenceSession.create(`/encodings/${name}/model.onnx`, { executionProviders: ["wasm"] });
    answer.encodings[name] = [];
    for (const { input_ids, attention_mask } of job.small_batches) {
      const { last_hidden_state } = await encode(ort, small, input_ids, attention_mask);
      answer.encodings[name].push(Array.from(last_hidden_state.data));
    }
    await small.release();
  }
  // further precisions of the encoder
  for (const [dtype, file] of Object.entries(job.dtypes)) {
    const smaller = await ort.InferenceSession.create(`/encoder_js/${file}`, { executionProviders: ["wasm"] });
    const { input_ids, attention_mask } = job.tokenized;
    const { sentence_embedding } = await encode(ort, smaller, input_ids, attention_mask);
    answer.precisions[dtype] = Array.from(sentence_embedding.data);
    await smaller.release();
  }
  // the sample that a bundle carries, read without Python
  const proven = await ort.InferenceSession.create("/self_check/model.onnx", { executionProviders: ["wasm"] });
  const sample = await (await fetch("/self_check/parity.safetensors")).arrayBuffer();
  answer.self_check = await selfCheck(ort, proven, sample);
  answer.versions = { chromium: navigator.userAgent.match(/Chrome\/([\d.]+)/)[1], "onnxruntime-web": ort.env.versions.web };
  return answer;
}

const job = await (await fetch("/job.json")).json();
let answer;
try {
  answer = await run(job);
} catch (error) {
  answer = { error: `${error.message ?? error}` };
}
await fetch("/answer", { method: "POST", body: JSON.stringify(answer) });
