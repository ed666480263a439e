/* The operations that plans are made of. */
#include "plan/operation.h"

const struct operation *operation_get(tess_operation operation) {
    static const struct operation *const operations[] = {[TESS_ATTENTION] = &operation_attention,
                                                         [TESS_ATTENTION_BACKWARD] =
                                                             &operation_gradient,
                                                         [TESS_MLP] = &operation_mlp};
    return operations[operation];
}
