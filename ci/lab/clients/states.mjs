// @huggingface/transformers in Node with a decoder of --layout transformers.js: node states.mjs JOB ANSWER
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname } from "node:path";
import { AutoModelForCausalLM, Tensor, env } from "@huggingface/transformers";

const job = JSON.parse(readFileSync(process.argv[2], "utf8"));
env.allowRemoteModels = false;
env.localModelPath = `${dirname(job.bundle)}/`;
const model = await AutoModelForCausalLM.from_pretrained(basename(job.bundle), { dtype: "fp32" });

// rows padded on the left
async function generate(prompts) {
  const width = Math.max(...prompts.map((prompt) => prompt.length));
  const padding = prompts.map((prompt) => Array(width - prompt.length).fill(0n));
  const shape = [prompts.length, width];
  const ids = prompts.flatMap((prompt, row) => [...padding[row], ...prompt.map(BigInt)]);
  const mask = prompts.flatMap((prompt, row) => [...padding[row], ...prompt.map(() => 1n)]);
  const sequences = await model.generate({
    input_ids: new Tensor("int64", BigInt64Array.from(ids), shape),
    attention_mask: new Tensor("int64", BigInt64Array.from(mask), shape),
    max_new_tokens: job.new_tokens,
    do_sample: false,
    eos_token_id: [],
  });
  return sequences.tolist().map((row) => row.map(Number).slice(width));
}

const tokens = [];
for (const prompt of job.prompts) tokens.push(...(await generate([prompt])));
const together = await generate(job.prompts);
const require = createRequire(import.meta.url);
const { version } = JSON.parse(readFileSync(`${dirname(require.resolve("@huggingface/transformers"))}/../package.json`, "utf8"));
writeFileSync(process.argv[3], JSON.stringify({ tokens, together, versions: { node: process.versions.node, "@huggingface/transformers": version } }));
