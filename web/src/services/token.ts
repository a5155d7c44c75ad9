/** The cluster token, kept for this tab only. A coordinator on loopback does not ask for it to read. */
const KEY = "planaria-token";

export function readToken(): string | null {
  return window.sessionStorage.getItem(KEY);
}

export function writeToken(token: string): void {
  window.sessionStorage.setItem(KEY, token);
}
