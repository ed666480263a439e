/* A case's pattern and tensors on the host: what checks, tests and the benchmark begin with. */
#ifndef LAB_SETTING_H
#define LAB_SETTING_H

#include "lab/run/backward.h"
#include "lab/run/cache.h"
#include "lab/lists/listed.h"
#include "lab/run/modifiers.h"
#include "lab/run/run.h"

struct lab_setting {
    struct lab_case c;
    tess_pattern *pattern;             /* made through the case's source */
    struct lab_listed listed;          /* topk=: what the plan is filled from; the same keys */
    struct lab_tensor q, k, v, o, lse; /* o and lse are read by a backward */
    struct lab_modifiers modifiers;
    struct lab_sums sums;   /* a run reads the reference and writes the sums */
    struct lab_cache cache; /* stands in place of k and v, for runs and the oracle */
    struct lab_base base;
    struct lab_mlp mlp;
    struct lab_given given; /* backward */
    struct lab_wanted wanted;
};

/* Q, K and V are filled as the case says, without the poison of rows that no query lists; o and lse
 * hold canaries. Answers 0, or -1 with the reason; lab_setting_free whichever it was. */
int lab_setting_make(struct lab_setting *setting, const struct lab_case *c, char why[LAB_WHY]);
void lab_setting_free(struct lab_setting *setting);

/* Another o or lse, or K or V, of the setting's layout. 0, or -1 without memory. */
int lab_setting_again(const struct lab_setting *setting, const struct lab_tensor *like,
                      struct lab_tensor *tensor);

/* A run of a plan over the setting's tensors, into its o and lse; of a backward, into its gradients. */
struct lab_run lab_setting_run(struct lab_setting *setting, const struct lab_planned *planned);

/* How the oracle scores: modifiers, today's lengths, and how the cache holds keys and values. */
struct lab_scoring lab_setting_scoring(const struct lab_setting *setting);

/* The oracle's gradients of what the setting holds, by a pattern that lists what the setting's does. 0, or
 * -1 without memory; lab_gradients_free in either case. */
int lab_setting_gradients(const struct lab_setting *setting, const tess_pattern *pattern,
                          struct lab_gradients *gradients);

/* The oracle's MLP likewise, of all rows, or of n_places that are named (lab_mlp_of). lab_mlp_answer_free in either
 * case. */
int lab_setting_mlp(const struct lab_setting *setting, const tess_pattern *pattern,
                    const int64_t *places, int64_t n_places, struct lab_mlp_answer *answer);

#endif
