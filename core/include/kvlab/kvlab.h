/* kvlab.h - the whole core: numbers, records and what is built on them.
 * See docs/architecture.md. */
#ifndef kvlab_kvlab_h
#define kvlab_kvlab_h

#include "kvlab/attend.h"
#include "kvlab/attend_grad.h"
#include "kvlab/base.h"
#include "kvlab/bench.h"
#include "kvlab/blas.h"
#include "kvlab/compress.h"
#include "kvlab/compress_grad.h"
#include "kvlab/index.h"
#include "kvlab/index_grad.h"
#include "kvlab/loss.h"
#include "kvlab/norm.h"
#include "kvlab/norm_grad.h"
#include "kvlab/number.h"
#include "kvlab/ops.h"
#include "kvlab/op_grad.h"
#include "kvlab/optim.h"
#include "kvlab/parallel.h"
#include "kvlab/pool.h"
#include "kvlab/record.h"
#include "kvlab/rope.h"
#include "kvlab/rows.h"
#include "kvlab/safetensors.h"
#include "kvlab/sha256.h"
#include "kvlab/tensor.h"
#include "kvlab/vmath.h"

#endif
