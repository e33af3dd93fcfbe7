package plan

import "unsafe"

// Numbers holds the numbers that all parameters of a step share, as a struct such as [AdamShared].
type Numbers [8]float64

// NumbersOf returns the numbers that begin at first as a rule's struct.
func NumbersOf[N any](first *float64) *N { return (*N)(unsafe.Pointer(first)) }

// The numbers of the rules. Sign is -1 if the step maximizes and multiplies gradients. Decay times
// the parameter is added to its gradient.
type (
	SGDShared struct{ Keep, Decay, Sign, Nesterov float64 } // Keep is 1 - dampening; Nesterov is 0 or 1
	SGDOwn    struct{ Rate, Momentum, First float64 }       // First is not 0 if the momentum holds nothing yet

	AdamShared struct{ Beta2, C2, Eps, Decay, Sign float64 } // C2 is 1 - Beta2
	// AdamOwn has rate/(1-beta1^t), sqrt(1-beta2^t), AdamW's factor of the parameter, and 1 -
	// beta1.
	AdamOwn struct{ Size, Correction, Shrink, C1 float64 }

	RMSpropShared struct{ Alpha, C, Eps, Decay, Sign float64 } // C is 1 - Alpha
	RMSpropOwn    struct{ Rate, Momentum float64 }

	AdagradShared struct{ Decay, Eps, Sign float64 }
	AdagradOwn    struct{ Rate float64 }

	LionShared struct{ Beta1, C1, Beta2, C2, Sign float64 } // C1 is 1 - Beta1, C2 1 - Beta2
	LionOwn    struct{ Rate, Shrink float64 }               // Shrink is 1 - rate*decay
)
