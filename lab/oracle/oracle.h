/*
 * The oracle: attention in double precision, straight from the definition, knowing nothing of
 * plans. It reads the inputs as they are stored and the keys from tess_pattern_row.
 */
#ifndef LAB_ORACLE_H
#define LAB_ORACLE_H

#include "lab/oracle/scoring.h"

enum { LAB_BAD_K = 1, LAB_BAD_V = 2, LAB_MET_V = 4 };

/* Row x of the answer is query place[x].i of head place[x].h of batch place[x].b. */
struct lab_oracle {
    int64_t rows, d_v;
    tess_type type;          /* type to which weights may be rounded: q's, but see lab_rounds */
    int drops;               /* some weights are dropped */
    int scales;              /* values have scales by token or group, which weights may be rounded with */
    int is_mean;             /* o is a mean of V as stored, and so within V's type */
    struct lab_place *place; /* [rows] */
    double *o;               /* [rows][d_v] */
    double *lse;             /* [rows] */
    /* [rows] M: max(max |s|, scale |q| max |k| / 2), over finite scores; with ALiBi of keys whose s is
     * at least lse - 32 */
    double *size;
    double *spread; /* [rows] the norm of S, S_d = sqrt(sum p^2 v^2), dropped keys counted */
    /* [rows] X of o and of lse: what rounding partial sums of scores does. */
    double *drift, *lse_drift;
    /* [rows] What an element of o may lack where the sink leaves next to nothing, else 0. */
    double *faint;
    int64_t *keys;            /* [rows] n: how many keys the row lists */
    unsigned char *lists_bad; /* [rows] LAB_BAD_K, LAB_BAD_V: it lists such a row with
                                  NaN or Inf; LAB_MET_V: and one of V's has a weight */
};

/*
 * All rows (places NULL), or the n_places rows named. scoring NULL: plain attention. Answers 0, or -1
 * without memory. lab_oracle_free releases *out whichever it was.
 */
int lab_oracle_run(struct lab_oracle *out, const tess_tensor *q, const tess_tensor *k,
                   const tess_tensor *v, const tess_pattern *pattern,
                   const struct lab_scoring *scoring, const struct lab_place *places,
                   int64_t n_places);
void lab_oracle_free(struct lab_oracle *oracle);

/* Whether a row less than `reach` away from row x, in the same head, lists what `bad` names. Of an
 * oracle of all rows. */
int lab_oracle_near(const struct lab_oracle *oracle, int64_t x, int64_t reach, int bad);

#endif
