import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { usePolling } from "./polling";

/**
 * Reads something again and again. `read` is given what the last reading returned, so that a list
 * that only grows can be continued instead of fetched again.
 */
export function usePolled<T>(
  key: readonly string[],
  read: (known: T | undefined) => Promise<T>,
): UseQueryResult<T> {
  const { seconds, paused } = usePolling();
  const queries = useQueryClient();
  return useQuery({
    queryKey: key,
    queryFn: () => read(queries.getQueryData<T>(key)),
    refetchInterval: paused ? false : seconds * 1000,
    refetchOnWindowFocus: !paused,
  });
}
