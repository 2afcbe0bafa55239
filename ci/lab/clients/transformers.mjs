// @huggingface/transformers (transformers.js) in Node, with bundles of --layout transformers.js: node transformers.mjs JOB ANSWER
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname } from "node:path";
import { AutoModel, AutoModelForCausalLM, AutoTokenizer, Tensor, env, pipeline } from "@huggingface/transformers";

const job = JSON.parse(readFileSync(process.argv[2], "utf8"));
env.allowRemoteModels = false;
env.localModelPath = `${dirname(job.encoder_js)}/`;
const [encoder, decoder] = [basename(job.encoder_js), basename(job.decoder_js)];
const answer = { texts: [], pipeline: [], tokens: [], precisions: {} };

// the bundle's own pooling
const tokenizer = await AutoTokenizer.from_pretrained(encoder);
const model = await AutoModel.from_pretrained(encoder, { dtype: "fp32" });
const inputs = await tokenizer(job.texts, { padding: true });
const { sentence_embedding } = await model(inputs);
answer.texts = Array.from(sentence_embedding.data);
// further precisions in the same directory
for (const dtype of Object.keys(job.dtypes)) {
  const smaller = await AutoModel.from_pretrained(encoder, { dtype });
  answer.precisions[dtype] = Array.from((await smaller(inputs)).sentence_embedding.data);
  await smaller.dispose();
}
// the pipeline's pooling, of last_hidden_state
const extractor = await pipeline("feature-extraction", encoder, { dtype: "fp32" });
const embeddings = await extractor(job.texts, { pooling: "mean", normalize: true });
answer.pipeline = Array.from(embeddings.data);

const causal = await AutoModelForCausalLM.from_pretrained(decoder, { dtype: "fp32" });
for (const prompt of job.prompts) {
  const ids = BigInt64Array.from(prompt, BigInt);
  const sequences = await causal.generate({
    input_ids: new Tensor("int64", ids, [1, prompt.length]),
    attention_mask: new Tensor("int64", ids.map(() => 1n), [1, prompt.length]),
    max_new_tokens: job.new_tokens,
    do_sample: false,
  });
  answer.tokens.push(Array.from(sequences.data, Number).slice(prompt.length));
}
const require = createRequire(import.meta.url);
const { version } = JSON.parse(readFileSync(`${dirname(require.resolve("@huggingface/transformers"))}/../package.json`, "utf8"));
answer.versions = { node: process.versions.node, "@huggingface/transformers": version };
writeFileSync(process.argv[3], JSON.stringify(answer));
