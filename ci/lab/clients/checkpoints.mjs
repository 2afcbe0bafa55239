// @huggingface/transformers in Node with bundles of the checkpoints of make_checkpoints.py: node checkpoints.mjs FOLDER ANSWER
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import {
  AutoFeatureExtractor, AutoModelForCTC, AutoModelForCausalLM, AutoProcessor, AutoTokenizer, CLIPModel, RawImage, Tensor, env, pipeline,
} from "@huggingface/transformers";

const folder = process.argv[2];
const job = JSON.parse(readFileSync(`${folder}/job.json`, "utf8"));
env.allowRemoteModels = false;
env.localModelPath = `${folder}/transformers.js/`;
const dtype = "fp32";
const answer = {};

async function attempt(name, compute) {
  try {
    answer[name] = await compute();
  } catch (error) {
    answer[name] = { error: String(error) };
  }
}

await attempt("smollm2", async () => {
  const tokenizer = await AutoTokenizer.from_pretrained("smollm2");
  const model = await AutoModelForCausalLM.from_pretrained("smollm2", { dtype });
  const tokens = [];
  for (const prompt of job.prompts) {
    const inputs = tokenizer(prompt);
    const sequences = await model.generate({ ...inputs, max_new_tokens: job.new_tokens, do_sample: false });
    tokens.push(Array.from(sequences.data, Number).slice(inputs.input_ids.dims[1]));
  }
  return { tokens };
});

await attempt("qwen3-embedding", async () => {
  const extractor = await pipeline("feature-extraction", "qwen3-embedding", { dtype });
  const embeddings = await extractor(job.texts, { pooling: "last_token", normalize: true });
  return { embeddings: embeddings.tolist() };
});

await attempt("clip", async () => {
  const tokenizer = await AutoTokenizer.from_pretrained("clip");
  const processor = await AutoProcessor.from_pretrained("clip");
  const model = await CLIPModel.from_pretrained("clip", { dtype });
  const image = new RawImage(Uint8ClampedArray.from(job.pixels), job.side, job.side, 3);
  const texts = tokenizer(job.texts, { padding: true, truncation: true });
  const { logits_per_image, image_embeds } = await model({ ...texts, ...(await processor(image)) });
  return { logits_per_image: logits_per_image.tolist(), image_embeds: image_embeds.tolist() };
});

await attempt("wav2vec2", async () => {
  const extractor = await AutoFeatureExtractor.from_pretrained("wav2vec2");
  const model = await AutoModelForCTC.from_pretrained("wav2vec2", { dtype });
  const { logits } = await model(await extractor(Float32Array.from(job.sound)));
  return { logits: logits.tolist() };
});

const require = createRequire(import.meta.url);
const { version } = JSON.parse(readFileSync(`${require.resolve("@huggingface/transformers").replace(/\/dist\/.*/, "")}/package.json`, "utf8"));
answer.versions = { node: process.versions.node, "@huggingface/transformers": version };
writeFileSync(process.argv[3], JSON.stringify(answer));
