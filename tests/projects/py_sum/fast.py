"""Sums numbers; the slow baseline looks at every number twice."""


def total(numbers, work):
    result = 0
    for number in numbers:
        work[0] += 2
        result += number
    return result
