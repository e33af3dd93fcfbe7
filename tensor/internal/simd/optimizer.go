package simd

// AdamScalars are the numbers of a step of Adam: what parameters shrink by, and then are added to the gradient as; 1 - beta1, beta2,
// 1 - beta2, epsilon, the step's size, 1 over the root of the second moment's correction, and -1 for gradients that count with the
// other sign.
type AdamScalars[T Float] struct{ Shrink, Decay, C1, Beta2, C2, Eps, Step, Inverse, Sign T }

// SGDScalars are the numbers of a step of gradient descent: the learning rate, the momentum, 1 less the dampening, the weight decay,
// and -1 for gradients that count with the other sign.
type SGDScalars[T Float] struct{ LR, Momentum, Keep, Decay, Sign T }

// Momentum says what a step of gradient descent does with the momentum.
type Momentum uint8

// The sorts of momentum. Those that end in Nesterov look ahead.
const (
	NoMomentum Momentum = iota
	LaterMomentum
	LaterNesterov
	FirstMomentum // the buffer holds nothing yet
	FirstNesterov
)
