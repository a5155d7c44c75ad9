/**
 * Lists that only grow (events, steps): each poll reads the last page again and what follows it,
 * so a long list is read once and a short one stays cheap.
 */
export interface Page<T> {
  items: readonly T[];
  nextToken: string;
}

export interface Log<T> {
  /** The items of all pages, the oldest first. */
  items: readonly T[];
  /** Where the last page begins: its token, and the number of items before it. */
  lastToken: string;
  itemsBefore: number;
}

export type FetchPage<T> = (token: string) => Promise<Page<T>>;

export async function readLog<T>(fetchPage: FetchPage<T>, known?: Log<T>): Promise<Log<T>> {
  let token = known?.lastToken ?? "";
  let before = known?.items.slice(0, known.itemsBefore) ?? [];
  for (;;) {
    const page = await fetchPage(token);
    const items = [...before, ...page.items];
    if (page.nextToken === "") return { items, lastToken: token, itemsBefore: before.length };
    before = items;
    token = page.nextToken;
  }
}
