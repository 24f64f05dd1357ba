"""Times `total` by counted work, checks its result, exits 1 when it is wrong."""

from fast import total

work = [0]
result = total(list(range(1000)), work)
print(f"result={result} cost={work[0]}")
raise SystemExit(0 if result == 499500 else 1)
