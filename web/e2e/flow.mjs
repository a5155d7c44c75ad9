/**
 * One walk through the page in a real browser: from the cluster to a job and back, by keyboard where
 * it counts, with an accessibility check of both views.
 *
 *   node e2e/flow.mjs                          against fixed answers
 *   node e2e/flow.mjs URL JOB_ID               against a coordinator that serves the page
 *   SCREENSHOTS=DIR node e2e/flow.mjs ...      keeps pictures of the views
 */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { startFixtureServer } from "./fixture-server.mjs";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
// As root in a container Chromium has no sandbox; the rest keeps it from calling home.
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

async function assertAccessible(page, name) {
  await page.evaluate(await readFile(AXE, "utf8")); // not a script tag: the page's policy forbids those
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.target).join(" ")}`);
  assert.deepEqual(found, [], `accessibility of ${name}`);
}

async function picture(page, name) {
  const folder = process.env.SCREENSHOTS;
  if (folder) await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
}

async function walk(page, url, jobId) {
  await page.goto(url);
  await page.getByRole("heading", { name: "Cluster" }).waitFor();
  // By its row's heading: nodes name the job as well, and may be there before it.
  const jobLink = page.getByRole("rowheader").locator(`a[href$="${jobId}"]`);
  await jobLink.waitFor();
  await page.getByRole("rowheader", { name: /node/ }).first().waitFor();
  await assertAccessible(page, "the cluster");
  await picture(page, "cluster");

  await page.keyboard.press("Tab");
  assert.equal(
    await page.evaluate(() => document.activeElement.textContent),
    "Skip to the content",
  );

  await jobLink.focus();
  await page.keyboard.press("Enter");
  await page.getByText(/^Pipeline 0:/).waitFor();
  await page
    .getByText(/^layers? \d/)
    .first()
    .waitFor();
  await page.getByRole("img", { name: /^Loss from/ }).waitFor();
  await assertAccessible(page, "the job");
  await picture(page, "job");

  await page.getByRole("button", { name: "Pause" }).click();
  await page
    .getByText(/paused; last update \d+ s ago/)
    .first()
    .waitFor();
  await page.getByRole("button", { name: "Resume" }).click();
  await page
    .getByText(/last update/)
    .first()
    .waitFor({ state: "detached" });

  await page.goBack();
  await page.getByRole("heading", { name: "Cluster" }).waitFor();
}

/** What a reader sees when the coordinator goes away: the old data, and that it is old. */
async function walkWithoutServer(page, server) {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
  await page
    .getByText(/does not answer; last update \d+ s ago/)
    .first()
    .waitFor();
  await picture(page, "stale");
}

const executablePath = process.env.CHROMIUM ?? BROWSERS.find(existsSync);
assert.ok(executablePath, "Chromium is missing: apt-get install chromium, or set CHROMIUM");
const [url, jobId = "job-1"] = process.argv.slice(2);
const fixture = url === undefined ? await startFixtureServer() : undefined;
const browser = await chromium.launch({ executablePath, args: FLAGS });
try {
  const page = await browser.newPage({ viewport: { width: 1200, height: 900 } });
  page.setDefaultTimeout(30_000);
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await walk(page, url ?? `http://127.0.0.1:${fixture.address().port}/`, jobId);
  if (fixture) await walkWithoutServer(page, fixture);
  assert.deepEqual(errors, [], "errors in the page");
  console.log("the page works");
} finally {
  await browser.close();
  fixture?.close();
}
