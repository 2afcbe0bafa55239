// Unpacks the Chromium that @sparticuz/chromium ships, with the libraries that it needs: node unpack.mjs FROM TO
import { execFileSync } from "node:child_process";
import { chmodSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliDecompressSync } from "node:zlib";

const [from, to] = process.argv.slice(2);
const unpacked = (name) => brotliDecompressSync(readFileSync(join(from, `${name}.br`)));

writeFileSync(join(to, "chromium"), unpacked("chromium"));
chmodSync(join(to, "chromium"), 0o755);
for (const name of ["al2023.tar", "swiftshader.tar"]) {
  writeFileSync(join(to, name), unpacked(name));
  execFileSync("tar", ["-xf", name], { cwd: to });
  rmSync(join(to, name));
}
