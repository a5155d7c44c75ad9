import { act, cleanup, fireEvent, screen } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { usePolled } from "../hooks/use-polled";
import { ApiError } from "../services/client";
import { readToken } from "../services/token";
import { renderInApp } from "../testing";
import { PollingControls } from "./polling-controls";
import { View } from "./view";

type Read = () => Promise<string[]>;

function Names({ read }: { read: Read }) {
  const query = usePolled(["names"], read);
  return (
    <View title="Names" query={query} isEmpty={(d) => d.length === 0} emptyText="No names.">
      {(names) => <p>{names.join(" ")}</p>}
    </View>
  );
}

const settle = (ms = 0) => act(() => vi.advanceTimersByTimeAsync(ms));

beforeEach(() => {
  vi.useFakeTimers({ shouldAdvanceTime: false });
});

afterEach(() => {
  cleanup();
  vi.useRealTimers();
  window.sessionStorage.clear();
  window.localStorage.clear();
});

describe("a view", () => {
  test("says that it is loading until the first answer", async () => {
    let answer: (names: string[]) => void = () => undefined;
    const first = new Promise<string[]>((resolve) => {
      answer = resolve;
    });
    renderInApp(<Names read={() => first} />);
    expect(screen.getByText("Loading…")).toBeTruthy();
    answer(["ada"]);
    await settle();
    expect(screen.getByText("ada")).toBeTruthy();
  });

  test("says in words that there is nothing", async () => {
    renderInApp(<Names read={() => Promise.resolve([])} />);
    await settle();
    expect(screen.getByText("No names.")).toBeTruthy();
  });

  test("names the error and lets the reader try again", async () => {
    const read = vi.fn<Read>();
    read.mockRejectedValueOnce(new ApiError(0, "UNREACHABLE", "the coordinator does not answer"));
    read.mockResolvedValue(["ada"]);
    renderInApp(<Names read={read} />);
    await settle();
    expect(screen.getByRole("alert").textContent).toContain("the coordinator does not answer");
    await act(async () => {
      screen.getByRole("button", { name: "Try again" }).click();
      await vi.advanceTimersByTimeAsync(0);
    });
    expect(screen.getByText("ada")).toBeTruthy();
  });

  test("keeps the last data when polling fails and says how old it is", async () => {
    const read = vi.fn<Read>().mockResolvedValueOnce(["ada"]);
    read.mockRejectedValue(new ApiError(0, "UNREACHABLE", "the coordinator does not answer"));
    renderInApp(<Names read={read} />);
    await settle();
    expect(screen.queryByText(/last update/)).toBeNull();
    await settle(12_000);
    expect(screen.getByText("ada")).toBeTruthy();
    expect(screen.getByText(/does not answer; last update 12 s ago/)).toBeTruthy();
  });

  test("asks for the token when the coordinator does", async () => {
    const read = vi.fn<Read>();
    read.mockRejectedValueOnce(new ApiError(401, "UNAUTHENTICATED", "the credential is missing"));
    read.mockResolvedValue(["ada"]);
    renderInApp(<Names read={read} />);
    await settle();
    fireEvent.change(screen.getByLabelText(/cluster token/), { target: { value: "secret" } });
    fireEvent.click(screen.getByRole("button", { name: "Use it in this tab" }));
    await settle();
    expect(readToken()).toBe("secret");
    expect(screen.getByText("ada")).toBeTruthy();
  });
});

describe("polling", () => {
  test("asks again after the interval, and not while paused", async () => {
    const read = vi.fn<Read>().mockResolvedValue(["ada"]);
    renderInApp(
      <>
        <PollingControls />
        <Names read={read} />
      </>,
    );
    await settle();
    await settle(2_000);
    expect(read).toHaveBeenCalledTimes(2);
    act(() => {
      screen.getByRole("button", { name: "Pause" }).click();
    });
    await settle(20_000);
    expect(read).toHaveBeenCalledTimes(2);
    expect(screen.getByText(/paused; last update 20 s ago/)).toBeTruthy();
    expect(screen.getByRole("button", { name: "Resume" })).toBeTruthy();
  });
});
