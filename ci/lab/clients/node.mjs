// onnxruntime-node: node node.mjs JOB ANSWER
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import * as ort from "onnxruntime-node";
import { encode, generate } from "./onnx.mjs";
import { selfCheck } from "./self-check.mjs";

const job = JSON.parse(readFileSync(process.argv[2], "utf8"));
const answer = { embeddings: [], external: [], tokens: [], logits: [], encodings: {}, precisions: {} };

const encoder = await ort.InferenceSession.create(`${job.encoder}/model.onnx`);
for (const { input_ids, attention_mask } of job.batches) {
  const { sentence_embedding } = await encode(ort, encoder, input_ids, attention_mask);
  answer.embeddings.push(Array.from(sentence_embedding.data));
}
// weights in a file of their own, as large models have them, are found beside the model
const external = await ort.InferenceSession.create(`${job.external}/model.onnx`);
for (const { input_ids, attention_mask } of job.batches) {
  const { sentence_embedding } = await encode(ort, external, input_ids, attention_mask);
  answer.external.push(Array.from(sentence_embedding.data));
}
const decoder = await ort.InferenceSession.create(`${job.decoder}/model.onnx`);
for (const prompt of job.prompts) {
  const { tokens, firstLogits } = await generate(ort, decoder, prompt, job.new_tokens);
  answer.tokens.push(tokens);
  answer.logits.push(Array.from(firstLogits));
}
// every encoding of positions, in a small encoder
for (const name of Object.keys(job.encodings)) {
  const small = await ort.InferenceSession.create(`${job.encodings[name]}/model.onnx`);
  answer.encodings[name] = [];
  for (const { input_ids, attention_mask } of job.small_batches) {
    const { last_hidden_state } = await encode(ort, small, input_ids, attention_mask);
    answer.encodings[name].push(Array.from(last_hidden_state.data));
  }
  await small.release();
}
// further precisions of the encoder
for (const [dtype, file] of Object.entries(job.dtypes)) {
  const smaller = await ort.InferenceSession.create(`${job.encoder_js}/${file}`);
  const { input_ids, attention_mask } = job.tokenized;
  const { sentence_embedding } = await encode(ort, smaller, input_ids, attention_mask);
  answer.precisions[dtype] = Array.from(sentence_embedding.data);
  await smaller.release();
}
// the sample that a bundle carries, read without Python
const proven = await ort.InferenceSession.create(`${job.self_check}/model.onnx`);
const { buffer } = new Uint8Array(readFileSync(`${job.self_check}/parity.safetensors`));
answer.self_check = await selfCheck(ort, proven, buffer);
const { version } = createRequire(import.meta.url)("onnxruntime-node/package.json");
answer.versions = { node: process.versions.node, "onnxruntime-node": version };
writeFileSync(process.argv[3], JSON.stringify(answer));
