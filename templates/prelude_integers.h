// Integers: functions that a vendor's half has of floats alone, and quotients of row indices.

RJ_DEVICE int rj_abs(int a) { return a < 0 ? -a : a; }
RJ_DEVICE long long rj_abs(long long a) { return a < 0 ? -a : a; }
RJ_DEVICE int rj_max(int a, int b) { return a > b ? a : b; }
RJ_DEVICE long long rj_max(long long a, long long b) { return a > b ? a : b; }
RJ_DEVICE int rj_min(int a, int b) { return a < b ? a : b; }
RJ_DEVICE long long rj_min(long long a, long long b) { return a < b ? a : b; }

RJ_DEVICE int rj_to_i32(int a) { return a; }
RJ_DEVICE int rj_to_i32(long long a) { return static_cast<int>(rj_max(-2147483648ll, rj_min(2147483647ll, a))); }

// Quotient of a row index by an extent, both non-negative. A 64-bit division costs about 70 instructions and is needed
// only past 2^32 rows.
RJ_DEVICE long long rj_quotient(long long row, long long extent) {
    if (((row | extent) >> 32) == 0) return static_cast<unsigned>(row) / static_cast<unsigned>(extent);
    return row / extent;
}
