#!/usr/bin/env python3
"""Prints the polynomial coefficients of llvm_math.cpp. Needs mpmath and numpy.

Each row is a weighted minimax fit: Lawson's iteration of weighted least squares on Chebyshev nodes, in 40 digits, then
rounding the coefficients to f32 one at a time from the largest term down and fitting the rest again, which loses less than
rounding them together. The weight makes the fitted error the relative error of the function's result.
"""
import mpmath as mp
import numpy as np

mp.mp.dps = 40
NODES = 200


def f32(value):
    return float(np.float32(float(value)))


def solve(target, weights, columns):
    rows = len(target)
    a = mp.matrix(rows, len(columns))
    b = mp.matrix(rows, 1)
    for i in range(rows):
        root = mp.sqrt(weights[i])
        b[i] = target[i] * root
        for j, column in enumerate(columns):
            a[i, j] = column[i] * root
    return mp.lu_solve(a.T * a, a.T * b)


def minimax(target, scale, columns):
    """Coefficients of `columns` that minimise max |target - sum| * scale."""
    weights = [s * s for s in scale]
    for _ in range(30):
        c = solve(target, weights, columns)
        errors = [abs(t - sum(c[j] * col[i] for j, col in enumerate(columns))) * scale[i] for i, t in enumerate(target)]
        mean = sum(errors) / len(errors)
        weights = [w * (e / mean + mp.mpf("0.02")) for w, e in zip(weights, errors)]
        total = sum(weights)
        weights = [w / total for w in weights]
    return c, max(errors)


def fit(name, low, high, degree, function, weight, variable=lambda x: x):
    """function(x) ~ sum c_i * variable(x)**i, errors counted as weight(x) * |difference|."""
    xs = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / NODES) for i in range(NODES)]
    target = [function(x) for x in xs]
    scale = [weight(x) for x in xs]
    powers = [[variable(x) ** k for x in xs] for k in range(degree + 1)]
    fixed = []
    for k in range(degree + 1):
        c, error = minimax(target, scale, powers[k:])
        if k == 0:
            print(f"// {name}: fitted to {float(mp.log(error, 2)):.1f} bits")
        value = f32(c[0])
        fixed.append(value)
        target = [t - value * p for t, p in zip(target, powers[k])]
    print("{" + ", ".join(float(v).hex() for v in fixed) + "}  // " + ", ".join(f"{v:.9g}" for v in fixed))
    print(f"// after rounding: {float(mp.log(max(abs(t) * s for t, s in zip(target, scale)), 2)):.1f} bits")


one = mp.mpf(1)
half_ln2 = mp.log(2) / 2 * mp.mpf("1.001")

# e^r = 1 + r + r^2 q(r)
for name, reach, degree in (("exp", half_ln2, 4), ("exp by sixteenths", half_ln2 / 16, 1)):
    fit(name, -reach, reach, degree, lambda r: (mp.exp(r) - 1 - r) / r**2, lambda r: r**2 / mp.exp(r))
# 2^f = 1 + f q(f) of 0 <= f < 1
for degree in (2, 4):
    fit(f"exp2, {degree + 1} terms", mp.mpf("1e-4"), one, degree, lambda f: (2**f - 1) / f, lambda f: f / 2**f)
# 2^f = 1 + f q(f) of |f| <= 1/2, and of |f| <= 1/16
for part, degree in ((one, 3), (one, 4), (one / 8, 3)):
    reach = part / 2 * mp.mpf("1.001")
    fit(f"exp2 to the nearest {float(part)}, {degree + 1} terms", -reach, reach, degree, lambda f: (2**f - 1) / f,
        lambda f: abs(f) / 2**f)
# log((1 + s) / (1 - s)) = 2 s + s (z q(z)), z = s^2, s = f / (2 + f), 1 + f in [sqrt(1/2), sqrt(2)]
s_max = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
fit("log", mp.mpf("1e-3"), s_max, 3, lambda s: (mp.log((1 + s) / (1 - s)) - 2 * s) / s**3,
    lambda s: s**3 / mp.log((1 + s) / (1 - s)), lambda s: s * s)

# tanh(x) = x + x^3 q(x^2) up to 0.625
fit("tanh", mp.mpf("1e-3"), mp.mpf("0.625"), 4, lambda x: (mp.tanh(x) - x) / x**3, lambda x: x**3 / mp.tanh(x),
    lambda x: x * x)
# erf(x) = x + x q(x^2) up to the split, 1 - e ^ (-t - t q(t)) beyond it, where erf rounds to 1 at 3.92.
split = mp.mpf("0.9375")
fit("erf, small", mp.mpf("1e-3"), split, 5, lambda x: mp.erf(x) / x - 1, lambda x: x / mp.erf(x), lambda x: x * x)
fit("erf, large", split, mp.mpf("4.0"), 6, lambda t: -mp.log(mp.erfc(t)) / t - 1, lambda t: t * mp.erfc(t) / mp.erf(t))


def exact_near(function, x):
    """The f32 within 3000 units of x whose function(x) is closest to an f32."""
    x = np.float32(float(x))
    near = [f32(x + np.float32(units) * np.spacing(x)) for units in range(-3000, 3001)]
    return min(near, key=lambda y: abs(function(y) - f32(function(y))))


# erf(x) = erf(x_i) + t q(t), t = x - x_i, i = round(3.9 x); of i = 0 it is t + t q(t), q of t^2. Each of the 16 gives a
# column of kErfTables: x_i, erf(x_i) and q's coefficients.
PER_ONE = mp.mpf("3.9")
fit("erf, 0 of 16", mp.mpf("1e-3"), mp.mpf("0.5") / PER_ONE, 2, lambda x: mp.erf(x) / x - 1, lambda x: x / mp.erf(x),
    lambda x: x * x)
for i in range(1, 16):
    x = exact_near(mp.erf, i / PER_ONE)
    print(f"// x {x.hex()}, erf x {f32(mp.erf(x)).hex()}")
    reach = mp.mpf("0.5") / PER_ONE + abs(x - i / PER_ONE)
    fit(f"erf, {i} of 16", -reach, reach, 4, lambda t: (mp.erf(x + t) - mp.erf(x)) / t, lambda t: abs(t) / mp.erf(x + t))

# log(m) = -log(r_i) + log(1 + f), f = m r_i - 1, of m in [3/4, 3/2) the i-th sixteenth of its binade. r_i is near the
# inverse of its middle, of so few bits that f is exact; beside 1 it is 1. Each gives a column of kLogTables: r_i,
# -log r_i, and that as 17 bits behind the point and the rest.
low, high = mp.mpf(0), mp.mpf(0)
for i in range(16):
    unit, grid = (one, 32) if i < 8 else (one / 2, 16)
    begin, end = (1 + mp.mpf(i) / 16) * unit, (1 + mp.mpf(i + 1) / 16) * unit
    r = 1.0 if i in (0, 15) else round(float(2 / (begin + end)) * grid) / grid
    value = -mp.log(r)
    upper = mp.nint(value * 2**17) / 2**17
    print(f"// r {r.hex()}, -log r {f32(value).hex()}, {float(upper).hex()} + {f32(value - upper).hex()}")
    low, high = min(low, begin * r - 1), max(high, end * r - 1)
# log(1 + f) = f + f^2 q(f), absolutely, and relatively
fit("log near 1", low, high, 2, lambda f: (mp.log(1 + f) - f) / f**2, lambda f: f**2)
fit("log near 1, relatively", low, high, 3, lambda f: (mp.log(1 + f) - f) / f**2, lambda f: f**2 / abs(mp.log(1 + f)))

# tanh(x) = tanh(x_i) + t q(t), t = x - x_i, i the last four bits of 1 + x before the 21 below them: quarters of binades.
# Each gives a column of kTanhTables, of i = 0 where x_i is 0 t + t q(t). What is past 9.5 is taken for that.
for i in range(14):
    unit = mp.mpf(2) ** (i // 4)
    begin = unit * (1 + mp.mpf(i % 4) / 4) - 1
    end = min(begin + unit / 4, mp.mpf("9.5"))
    if i == 0:
        fit("tanh, 0 of 14", mp.mpf("1e-3"), end, 5, lambda x: mp.tanh(x) / x - 1, lambda x: x / mp.tanh(x))
        continue
    x = exact_near(mp.tanh, mp.atanh(min(f32(mp.tanh((begin + end) / 2)), 1 - 2.0**-24)))
    print(f"// x {x.hex()}, tanh x {f32(mp.tanh(x)).hex()}")
    fit(f"tanh, {i} of 14", begin - x, end - x, 5, lambda t: (mp.tanh(x + t) - mp.tanh(x)) / t,
        lambda t: abs(t) / mp.tanh(x + t))

quarter = mp.pi / 4 * mp.mpf("1.001")
fit("sin", mp.mpf("1e-3"), quarter, 3, lambda r: (mp.sin(r) - r) / r**3, lambda r: r**3 / mp.sin(r), lambda r: r * r)
fit("cos", mp.mpf("1e-2"), quarter, 2, lambda r: (mp.cos(r) - 1 + r * r / 2) / r**4, lambda r: r**4 / mp.cos(r),
    lambda r: r * r)

print("ln2 to 15 bits:", float(mp.floor(mp.log(2) * 2**15) / 2**15).hex(), f32(mp.log(2) - mp.floor(mp.log(2) * 2**15) / 2**15).hex())
high = mp.floor(mp.pi / 2 * 2**32) / 2**32
parts = []
for _ in range(3):
    parts.append(f32(mp.pi / 2 - sum(mp.mpf(part) for part in parts)))
print("pi/2 as f32:", ", ".join(part.hex() for part in parts))
print("pi/2 to 33 bits:", float(high).hex(), float(mp.pi / 2 - high).hex(), "2/pi", float(2 / mp.pi).hex())
