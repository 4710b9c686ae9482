#ifndef kvlab_number_h
#define kvlab_number_h
#include "kvlab/base.h"
#endif
