// What a bundle's model takes and returns, the same for onnxruntime-node and onnxruntime-web (`ort` is either).

/** Token ids, or a mask, of rows of equal length: int64 [B, T]. */
export function int64(ort, rows) {
  return new ort.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
}

/** All outputs of an encoder, by name, for padded rows of token ids and their mask. */
export async function encode(ort, session, inputIds, attentionMask) {
  const feeds = {
    input_ids: int64(ort, inputIds),
    attention_mask: int64(ort, attentionMask),
    token_type_ids: int64(ort, inputIds.map((row) => row.map(() => 0))),
  };
  return session.run(feeds);
}

/** Greedy decoding with a dynamic KV cache: the prompt in one call (prefill), then one token per call. */
export async function generate(ort, session, prompt, maxNewTokens) {
  const feeds = {};
  for (const { name, shape } of session.inputMetadata) {
    if (!name.startsWith("past_key_values.")) continue;
    const dims = shape.map((size) => (size === "batch_size" ? 1 : typeof size === "string" ? 0 : size));
    feeds[name] = new ort.Tensor("float32", new Float32Array(0), dims);
  }
  const tokens = [];
  let inputIds = prompt;
  let firstLogits = null;
  while (tokens.length < maxNewTokens) {
    feeds.input_ids = int64(ort, [inputIds]);
    feeds.attention_mask = int64(ort, [Array(prompt.length + tokens.length).fill(1)]);
    const results = await session.run(feeds);
    for (const name of session.outputNames) {
      if (name.startsWith("present.")) feeds[name.replace("present.", "past_key_values.")] = results[name];
    }
    const logits = results.logits.data.slice(-results.logits.dims[2]);
    firstLogits ??= logits;
    inputIds = [logits.indexOf(Math.max(...logits))];
    tokens.push(inputIds[0]);
  }
  return { tokens, firstLogits };
}
