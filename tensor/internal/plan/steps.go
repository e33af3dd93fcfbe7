package plan

// A rule of an optimiser is numbers: those that all parameters of a launch share, which are the parameters of a call, and own ones
// of each parameter, which are its row in a captured step.

// SGD are the numbers that parameters share: 1 less the dampening, the weight decay, and -1 for gradients that count with the other sign.
type SGD struct {
	Keep, Decay, Sign float64
	Nesterov          bool
}

// The own numbers of a parameter for SGD.
const (
	SGDRate = iota
	SGDMomentum
	SGDFirst // not 0: the momentum buffer holds nothing yet
	SGDWidth
)

// Adam are the numbers that parameters share. Decay is of Adam; AdamW shrinks the parameters instead.
type Adam struct{ Beta2, C2, Eps, Decay, Sign float64 } // C2 is 1 - Beta2

// The own numbers of a parameter for Adam.
const (
	AdamSize       = iota // rate / (1 - beta1^t)
	AdamCorrection        // sqrt(1 - beta2^t)
	AdamShrink            // what the parameter is multiplied by before
	AdamC1                // 1 - beta1
	AdamWidth
)

// RMSprop are the numbers that parameters share.
type RMSprop struct{ Alpha, C, Eps, Decay, Sign float64 } // C is 1 - Alpha

// The own numbers of a parameter for RMSprop.
const (
	RMSpropRate = iota
	RMSpropMomentum
	RMSpropWidth
)

// Adagrad are the numbers that parameters share.
type Adagrad struct{ Decay, Eps, Sign float64 }

// The own numbers of a parameter for Adagrad.
const (
	AdagradRate = iota // rate / (1 + (t - 1) decay)
	AdagradWidth
)
