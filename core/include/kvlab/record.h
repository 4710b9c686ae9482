#ifndef kvlab_record_h
#define kvlab_record_h
#include "kvlab/number.h"
#endif
