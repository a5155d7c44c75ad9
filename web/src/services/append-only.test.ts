import { expect, test } from "vitest";
import { type Page, readLog } from "./append-only";

/** A server of numbers from 1 that hands out two a page; its token is the last number sent. */
function numbers(count: () => number, asked: string[]) {
  return (token: string): Promise<Page<number>> => {
    asked.push(token);
    const after = Number(token);
    const items = [after + 1, after + 2].filter((n) => n <= count());
    const last = items.at(-1) ?? after;
    return Promise.resolve({ items, nextToken: last < count() ? String(last) : "" });
  };
}

test("the first reading takes every page", async () => {
  const asked: string[] = [];
  const log = await readLog(numbers(() => 5, asked));
  expect(log.items).toEqual([1, 2, 3, 4, 5]);
  expect(asked).toEqual(["", "2", "4"]);
});

test("a later reading starts at the last page and loses or repeats nothing", async () => {
  let count = 5;
  const asked: string[] = [];
  const fetchPage = numbers(() => count, asked);
  const known = await readLog(fetchPage);
  count = 8;
  asked.length = 0;
  const log = await readLog(fetchPage, known);
  expect(log.items).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  expect(asked).toEqual(["4", "6"]);
});

test("an empty list stays empty until something is appended", async () => {
  let count = 0;
  const fetchPage = numbers(() => count, []);
  const known = await readLog(fetchPage);
  expect(known.items).toEqual([]);
  count = 1;
  expect((await readLog(fetchPage, known)).items).toEqual([1]);
});
