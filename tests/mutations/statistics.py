"""Faults of intervals: a wrong denominator, a forgotten correction, samples taken for problems."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation("statistics.py", old, new, "test_statistics.py")
    for old, new in [
        ("1.0 - math.prod(1.0 - k / i for", "math.prod(1.0 - k / i for"),
        ("range(n - c + 1, n + 1)", "range(n - c, n + 1)"),
        ("range(n - c + 1, n + 1)", "range(n - c + 1, n)"),
        ("if n - c < k:", "if n - c <= k:"),
        ("if not (0 <= c <= n and", "if not (c <= n and"),
        ("and 1 <= k <= n):", "and 1 <= k):"),
        ("centre = p + z2 / (2 * n)", "centre = p + z2 / n"),
        ("centre = p + z2 / (2 * n)", "centre = p"),
        ("z2 / (4 * n * n)", "z2 / (4 * n)"),
        ("(centre - half) / (1 + z2 / n)", "(centre - half)"),
        ("(centre + half) / (1 + z2 / n)", "(centre + half)"),
        ("n >= 1 and 0 <= successes <= n", "0 <= successes <= n"),
        ("(1 + confidence) / 2", "confidence"),
        ("if not 0 < confidence < 1", "if not 0 < confidence"),
        ("[*rates, 0.0, 0.0, 1.0, 1.0]", "[*rates]"),
        ("[*rates, 0.0, 0.0, 1.0, 1.0]", "[*rates, 0.0, 1.0]"),
        ("[*rates, 0.0, 0.0, 1.0, 1.0]", "[*rates, 0.0, 0.0, 0.0, 1.0]"),
        ("/ (len(padded) - 1)", "/ len(padded)"),
        ("math.sqrt(variance / len(padded))", "math.sqrt(variance)"),
        ("math.sqrt(variance / len(padded))", "math.sqrt(variance / len(rates))"),
        ("max(0.0, mean - half), min(1.0", "mean - half, min(1.0"),
        ("max(0.0, mean - half), min(1.0, mean + half)", "max(0.0, mean - half), mean + half"),
        ("[b - a for", "[a - b for"),
        ("len(differences) + 2", "len(differences)"),
        ("for d in differences) + 1 -", "for d in differences) -"),
        ("+ 1 - size * mean * mean", "+ 1"),
        ("/ size**2)", "/ size)"),
        ("max(-1.0, mean - half)", "mean - half"),
    ]
]
