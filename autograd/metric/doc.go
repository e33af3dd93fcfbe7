// Package metric adds up what a training looks at once an epoch, such as its loss and the accuracy,
// in device memory. Steps wait for nothing.
//
//	loss, accuracy := nn.Own(in, metric.NewMean(ctx, env)), nn.Own(in, metric.NewMean(ctx, env))
//	for _, tape := range in.Steps(steps) {
//		x, y := next()
//		logits := model.Forward(tape, tape.Input(x))
//		accuracy.AddHits(tape, logits, y)
//		l := tape.CrossEntropy(logits, y)
//		loss.Add(tape, l, y)
//		optim.Minimize(tape, l, adam)
//	}
//	mean, err := loss.Value(ctx)
//
// A metric reads values that are on the tape: on one of [autograd.NoGrad] before an operation that
// frees them, or after [autograd.Variable.Keep]. It works in captured steps, whose replays add up.
// It owns its memory until Close, and belongs to one goroutine and the runtime that it was made
// for.
package metric
