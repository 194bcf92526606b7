/* Attention in plain C99, behind the protocol of docs/protocol.md. It needs libm, and a machine with little-endian
   numbers.

       cc -std=c99 -O2 -o attention attention.c -lm
       attention-conformance check --command ./attention

   With --wrong every query sees one key too many under the causal flag. */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AXES 4
#define HELLO                                                                                                     \
    "\"protocol\":\"1\",\"name\":\"\\\"%s\\\"\",\"language\":\"\\\"C\\\"\",\"claims\":\"{\\\"scope\\\":\\\"op\\\"," \
    "\\\"features\\\":[\\\"core\\\",\\\"heads\\\",\\\"value-width\\\",\\\"cross\\\",\\\"key-value\\\","              \
    "\\\"scale\\\",\\\"causal\\\",\\\"bool-mask\\\",\\\"float-mask\\\",\\\"key-padding\\\",\\\"empty-sizes\\\","     \
    "\\\"containment\\\"],\\\"dtypes\\\":[\\\"float64\\\",\\\"float32\\\"]}\""

typedef struct {
    char dtype[8];
    int rank;
    long shape[AXES];
    const char *data;
} Array;

static int wrong;

/* Messages: 8 bytes of length, 8 bytes of the header's length, the header as JSON, the arrays one after another.
   The header is flat enough to be searched for what is needed. */

static uint64_t length_at(const char *bytes) {
    uint64_t length;
    memcpy(&length, bytes, 8);
    return length;
}

/* Writes an answer: fields as text of the metadata, and at most one array, which is the output. */
static void answer(const char *fields, const char *array, const void *data, size_t size) {
    char header[2048];
    int used = snprintf(header, sizeof header, "{\"__metadata__\":{%s}%s}", fields, array);
    uint64_t lengths[2] = {8 + (uint64_t)used + size, (uint64_t)used};
    fwrite(lengths, 8, 2, stdout);
    fwrite(header, 1, (size_t)used, stdout);
    if (size) fwrite(data, 1, size, stdout);
    fflush(stdout);
}

static void answer_fields(const char *format, ...) {
    char fields[1536];
    va_list values;
    va_start(values, format);
    vsnprintf(fields, sizeof fields, format, values);
    va_end(values);
    answer(fields, "", NULL, 0);
}

/* What follows "name": in the header; NULL if it is not there. */
static const char *entry(const char *header, const char *name) {
    char quoted[40];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *found = strstr(header, quoted);
    return found ? found + strlen(quoted) + strspn(found + strlen(quoted), " ") : NULL;
}

/* The array of that name; dtype is empty if there is none. */
static Array array_of(const char *header, const char *data, const char *name) {
    Array array = {"", 0, {1, 1, 1, 1}, NULL};
    const char *at = entry(header, name);
    if (!at) return array;
    const char *end = strchr(at, '}'), *dtype = entry(at, "dtype"), *shape = entry(at, "shape");
    const char *offsets = entry(at, "data_offsets");
    if (*at != '{' || !end || !dtype || !shape || !offsets || offsets > end) return array;
    sscanf(dtype, "\"%7[A-Z0-9_]", array.dtype);
    for (shape++; *shape != ']' && array.rank < AXES; array.rank++) {
        char *after;
        array.shape[array.rank] = strtol(shape, &after, 10);
        shape = after + strspn(after, ", ");
    }
    array.data = data + strtol(offsets + 1, NULL, 10);
    return array;
}

/* A number of an array, whatever its dtype. */
static double number(const Array *array, long at) {
    float single;
    double number;
    if (!strcmp(array->dtype, "BOOL")) return array->data[at];
    if (!strcmp(array->dtype, "F32")) return memcpy(&single, array->data + 4 * at, 4), single;
    return memcpy(&number, array->data + 8 * at, 8), number;
}

static int has_shape(const Array *array, int rank, long a, long b, long c, long d) {
    const long wanted[AXES] = {a, b, c, d};
    return array->rank == rank && !memcmp(array->shape, wanted, (size_t)rank * sizeof(long));
}

static int is_mask(const Array *mask) {
    return !strcmp(mask->dtype, "BOOL") || !strcmp(mask->dtype, "F32") || !strcmp(mask->dtype, "F64");
}

static int broadcasts(const Array *mask, const long full[AXES]) {
    for (int axis = 0; axis < mask->rank; axis++) {
        long extent = mask->shape[axis];
        if (extent != 1 && extent != full[AXES - mask->rank + axis]) return 0;
    }
    return 1;
}

/* Where the entry of a mask for one sample, head, query and key lies. */
static long place(const Array *mask, const long index[AXES]) {
    long at = 0;
    for (int axis = 0; axis < mask->rank; axis++)
        at = at * mask->shape[axis] + (mask->shape[axis] == 1 ? 0 : index[AXES - mask->rank + axis]);
    return at;
}

/* One row of the output: the weighted mean of the values whose keys the query sees. Scores has room for all keys. */
static void row(Array *const in[5], const long index[AXES], int causal, double factor, double *scores, double *mean) {
    const Array *query = in[0], *key = in[1], *value = in[2], *mask = in[3], *padding = in[4];
    long H = query->shape[1], Lq = query->shape[2], dk = query->shape[3], Lk = key->shape[2], dv = value->shape[3];
    long at[AXES] = {index[0], index[1], index[2], 0}, head = index[0] * H + index[1];
    double largest = -INFINITY, sum = 0;
    for (long j = 0; j < Lk; j++) {
        int is_bool = !strcmp(mask->dtype, "BOOL"), hidden = causal && j > index[2] + wrong;
        at[3] = j;
        double entry = mask->data ? number(mask, place(mask, at)) : 0;
        hidden |= padding->data && !number(padding, index[0] * Lk + j);
        hidden |= mask->data && (is_bool ? !entry : entry == -INFINITY);
        scores[j] = -INFINITY;
        if (hidden) continue;
        double score = 0;
        for (long c = 0; c < dk; c++)
            score += number(query, (head * Lq + index[2]) * dk + c) * number(key, (head * Lk + j) * dk + c);
        scores[j] = score * factor + (is_bool ? 0 : entry);
        largest = fmax(largest, scores[j]);
    }
    for (long c = 0; c < dv; c++) mean[c] = 0;
    for (long j = 0; j < Lk; j++)
        if (scores[j] != -INFINITY) sum += scores[j] = exp(scores[j] - largest);
        else scores[j] = 0;
    for (long j = 0; j < Lk; j++)
        for (long c = 0; scores[j] != 0 && c < dv; c++)
            mean[c] += scores[j] / sum * number(value, (head * Lk + j) * dv + c);
}

/* Answers a request to run a problem, or refuses it: nothing is repeated or cut where shapes do not fit. */
static void run(const char *header, const char *data, long request) {
    static const char *const names[] = {"query", "key", "value", "attn_mask", "key_padding_mask"};
    Array arrays[5], *in[5];
    for (int n = 0; n < 5; n++) arrays[n] = array_of(header, data, names[n]), in[n] = &arrays[n];
    long B = in[0]->shape[0], H = in[0]->shape[1], Lq = in[0]->shape[2], dk = in[0]->shape[3];
    long Lk = in[1]->shape[2], dv = in[2]->shape[3], full[AXES] = {B, H, Lq, Lk};
    const char *causal = entry(header, "causal"), *scale = entry(header, "scale"), *why = NULL;
    if (!has_shape(in[1], 4, B, H, Lk, dk) || !has_shape(in[2], 4, B, H, Lk, dv)) why = "key or value does not fit";
    if (in[3]->data && !is_mask(in[3])) why = "a mask is boolean or float";
    if (in[3]->data && !broadcasts(in[3], full)) why = "a mask does not broadcast";
    if (in[4]->data && !has_shape(in[4], 2, B, Lk, 0, 0)) why = "the padding mask does not fit";
    if (why) {
        answer_fields("\"number\":\"%ld\",\"error\":\"\\\"%s\\\"\",\"exception\":\"\\\"ValueError\\\"\"", request, why);
        return;
    }
    int single = !strcmp(in[0]->dtype, "F32");
    size_t size = (size_t)(B * H * Lq * dv) * (single ? 4 : 8);
    char *output = malloc(size + 1), fields[64], array[256];
    double *scores = malloc(sizeof(double) * (size_t)(Lk + 1)), *mean = malloc(sizeof(double) * (size_t)(dv + 1));
    double factor = *++scale == 'n' ? 1 / sqrt((double)dk) : strtod(scale, NULL);
    for (long at = 0; at < B * H * Lq; at++) {
        const long index[AXES] = {at / (H * Lq), at / Lq % H, at % Lq, 0};
        row(in, index, causal[1] == 't', factor, scores, mean);
        for (long c = 0; c < dv; c++)
            if (single) ((float *)output)[at * dv + c] = (float)mean[c];
            else ((double *)output)[at * dv + c] = mean[c];
    }
    snprintf(fields, sizeof fields, "\"number\":\"%ld\"", request);
    snprintf(array, sizeof array, ",\"output\":{\"dtype\":\"%s\",\"shape\":[%ld,%ld,%ld,%ld],\"data_offsets\":[0,%zu]}",
             in[0]->dtype, B, H, Lq, dv, size);
    answer(fields, array, output, size);
    free(output), free(scores), free(mean);
}

int main(int count, char **arguments) {
    char prefix[8];
    wrong = count > 1 && !strcmp(arguments[1], "--wrong");
    while (fread(prefix, 1, 8, stdin) == 8) {
        uint64_t length = length_at(prefix);
        char *body = malloc(length + 1);
        if (fread(body, 1, length, stdin) != length) return 1;
        uint64_t size = length_at(body);
        char *header = calloc(size + 1, 1);
        memcpy(header, body + 8, size);
        const char *request = entry(header, "request"), *which = entry(header, "number");
        long number = strtol(which + 1, NULL, 10);
        if (!strncmp(request, "\"\\\"hello", 8))
            answer_fields("\"number\":\"%ld\"," HELLO, number, wrong ? "attention.c-wrong" : "attention.c");
        else if (!strncmp(request, "\"\\\"run", 6)) run(header, body + 8 + size, number);
        else answer_fields("\"number\":\"%ld\",\"error\":\"\\\"there is no such request\\\"\"", number);
        free(header), free(body);
    }
    return 0;
}
