// Package metric sums metrics of a training in device memory, such as its loss and accuracy, to be
// read once per epoch. Steps do not wait for the device.
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
// A metric reads values of the tape. On a tape of [autograd.NoGrad] call it before the operation
// that frees them, or call [autograd.Variable.Keep]. It works in captured steps: each replay adds
// to it. It owns its memory until Close, and belongs to one goroutine and to the runtime that it
// was made for.
package metric
