/* Judges outputs by exported cases, in C99: cc -o reader reader.c -lm; ./reader CASES OUTPUTS
   OUTPUTS holds NNNN.raw for each CASES/cases/NNNN.set, see reader.py. For little-endian machines. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define AS(type) { type v; memcpy(&v, p, sizeof v); return (double)v; }
static const int SIZE[17] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2}; /* by ONNX element type */

static double value(uint32_t kind, const unsigned char *p) {
    uint32_t h = p[0] | (SIZE[kind] > 1 ? p[1] << 8 : 0), wide = h << 16, m = h & 1023, e = h >> 10 & 31;
    float f; memcpy(&f, &wide, 4);
    switch (kind) {
    case 1: AS(float) case 3: AS(int8_t) case 4: AS(uint16_t) case 5: AS(int16_t) case 6: AS(int32_t)
    case 7: AS(int64_t) case 11: AS(double) case 12: AS(uint32_t) case 13: AS(uint64_t)
    case 16: return f; /* bfloat16: the upper half of a float32 */
    case 10: return (h >> 15 ? -1 : 1) * (e == 31 ? m ? NAN : INFINITY : e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24));
    default: return *p; /* uint8, bool */
    }
}
static unsigned char *slurp(const char *folder, const char *form, int n, long *size) {
    char path[4096];
    FILE *f = snprintf(path, sizeof path, form, folder, n) < (int)sizeof path ? fopen(path, "rb") : NULL;
    if (!f) return NULL;
    fseek(f, 0, SEEK_END), *size = ftell(f), rewind(f);
    unsigned char *data = malloc(*size + 1);
    if (!data || fread(data, 1, *size, f) != (size_t)*size) exit(4);
    return fclose(f), data;
}
static long outside(const unsigned char *e, const unsigned char *a, long size) { /* 0, or 1 + a flat position */
    uint32_t outputs, head[3], d; long used = 0, place = 0;
    memcpy(&outputs, e + 8, 4), e += 12;
    for (uint32_t o = 0; o < outputs; o++) {
        long count = 1;
        memcpy(head, e, 12); e += 12; /* type, rank, ranges for each element */
        for (uint32_t r = 0; r < head[1]; r++, e += 4) { memcpy(&d, e, 4); count *= d; }
        if (head[0] > 16 || !SIZE[head[0]] || used + count * SIZE[head[0]] > size) return 1 + place;
        for (long i = 0; i < count; i++, place++, used += SIZE[head[0]]) {
            double y = value(head[0], a + used), b[2], in = 0;
            for (uint32_t r = 0; r < head[2]; r++, e += 16) {
                memcpy(b, e, 16);
                if ((b[0] <= y && y <= b[1]) || (y != y && b[0] != b[0])) in = 1; /* NaN where NaN is due */
            }
            if (!in) return 1 + place;
        }
    }
    return used == size ? 0 : 1 + place;
}
int main(int argc, char **argv) {
    long n, m, count[3] = {0}; unsigned char *e, *a; /* pass, fail, not run */
    for (int i = 0; argc == 3 && (e = slurp(argv[1], "%s/cases/%04d.set", i, &n)); i++, free(e), free(a)) {
        if (n < 12 || memcmp(e, "OPGSET1\n", 8)) return fprintf(stderr, "%04d.set is no set file\n", i), 2;
        long at = (a = slurp(argv[2], "%s/%04d.raw", i, &m)) ? outside(e, a, m) : 0;
        if (at) printf("FAIL %04d: element %ld\n", i, at - 1);
        count[a ? at != 0 : 2]++;
    }
    printf("%ld pass, %ld fail, %ld not run\n", count[0], count[1], count[2]);
    return count[1] ? 1 : count[0] ? 0 : 5;
}
