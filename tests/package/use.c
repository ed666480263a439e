/* A stranger's program, C11 and C++17 alike: two tokens that see only themselves return V. */
#include <tessera.h>

#include <stdio.h>

int main(void) {
    float q[4] = {1, 2, 3, 4}, v[4] = {5, 6, 7, 8}, o[4] = {0, 0, 0, 0};
    tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, 1, 2, 2);
    tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, 1, 1, 2, 2);
    tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, 1, 2, 2);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error error = tess_error_init();
    tess_pattern *pattern = NULL;
    shape.n_q = 2;
    if (tess_pattern_from_spec(&pattern, "window(0,0)", &shape, &error) != TESS_OK ||
        tess_attention(TESS_CPU, &tq, &tq, &tv, pattern, &to, NULL, &error) != TESS_OK) {
        printf("%s: %s\n", tess_status_name(error.status), error.message);
        return 1;
    }
    tess_pattern_free(pattern);
    for (int i = 0; i < 4; i++)
        if (o[i] != v[i]) {
            printf("o[%d] is %g, not %g\n", i, (double)o[i], (double)v[i]);
            return 1;
        }
    printf("tessera %s works here\n", tess_version());
    return 0;
}
