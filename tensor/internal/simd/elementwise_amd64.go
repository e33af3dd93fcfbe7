//go:build !purego

package simd

var unary32 = [levels][unaries]UnaryFunc[float32]{
	AVX2: {
		Neg: negFloat32AVX2, Abs: absFloat32AVX2, Sqrt: sqrtFloat32AVX2, Square: squareFloat32AVX2, ReLU: reluFloat32AVX2,
		AddConst: addConstFloat32AVX2, MulConst: mulConstFloat32AVX2, LeakyReLU: leakyReLUFloat32AVX2, Clamp: clampFloat32AVX2,
		Exp: expFloat32AVX2, Tanh: tanhFloat32AVX2, Sigmoid: sigmoidFloat32AVX2, SiLU: siluFloat32AVX2, Log: logFloat32AVX2,
		Erf: erfFloat32AVX2, Rsqrt: rsqrtFloat32AVX2, GELU: geluFloat32AVX2, GELUTanh: geluTanhFloat32AVX2, ELU: eluFloat32AVX2,
		Softplus: softplusFloat32AVX2, LogSigmoid: logSigmoidFloat32AVX2,
	},
	AVX512: {
		Neg: negFloat32AVX512, Abs: absFloat32AVX512, Sqrt: sqrtFloat32AVX512, Square: squareFloat32AVX512, ReLU: reluFloat32AVX512,
		AddConst: addConstFloat32AVX512, MulConst: mulConstFloat32AVX512, LeakyReLU: leakyReLUFloat32AVX512, Clamp: clampFloat32AVX512,
		Exp: expFloat32AVX512, Tanh: tanhFloat32AVX512, Sigmoid: sigmoidFloat32AVX512, SiLU: siluFloat32AVX512, Log: logFloat32AVX512,
		Erf: erfFloat32AVX512, Rsqrt: rsqrtFloat32AVX512, GELU: geluFloat32AVX512, GELUTanh: geluTanhFloat32AVX512, ELU: eluFloat32AVX512,
		Softplus: softplusFloat32AVX512, LogSigmoid: logSigmoidFloat32AVX512,
	},
}

var unary64 = [levels][unaries]UnaryFunc[float64]{
	AVX2: {
		Neg: negFloat64AVX2, Abs: absFloat64AVX2, Sqrt: sqrtFloat64AVX2, Square: squareFloat64AVX2, ReLU: reluFloat64AVX2,
		AddConst: addConstFloat64AVX2, MulConst: mulConstFloat64AVX2, LeakyReLU: leakyReLUFloat64AVX2, Clamp: clampFloat64AVX2,
		Exp: expFloat64AVX2, Tanh: tanhFloat64AVX2, Sigmoid: sigmoidFloat64AVX2, SiLU: siluFloat64AVX2, Log: logFloat64AVX2,
		Erf: erfFloat64AVX2, Rsqrt: rsqrtFloat64AVX2, GELU: geluFloat64AVX2, GELUTanh: geluTanhFloat64AVX2, ELU: eluFloat64AVX2,
		Softplus: softplusFloat64AVX2, LogSigmoid: logSigmoidFloat64AVX2,
	},
	AVX512: {
		Neg: negFloat64AVX512, Abs: absFloat64AVX512, Sqrt: sqrtFloat64AVX512, Square: squareFloat64AVX512, ReLU: reluFloat64AVX512,
		AddConst: addConstFloat64AVX512, MulConst: mulConstFloat64AVX512, LeakyReLU: leakyReLUFloat64AVX512, Clamp: clampFloat64AVX512,
		Exp: expFloat64AVX512, Tanh: tanhFloat64AVX512, Sigmoid: sigmoidFloat64AVX512, SiLU: siluFloat64AVX512, Log: logFloat64AVX512,
		Erf: erfFloat64AVX512, Rsqrt: rsqrtFloat64AVX512, GELU: geluFloat64AVX512, GELUTanh: geluTanhFloat64AVX512, ELU: eluFloat64AVX512,
		Softplus: softplusFloat64AVX512, LogSigmoid: logSigmoidFloat64AVX512,
	},
}

var binary32 = [levels][binaries]BinaryFunc[float32]{
	AVX2: {
		Add: addFloat32AVX2, Sub: subFloat32AVX2, Mul: mulFloat32AVX2, Div: divFloat32AVX2, ReLUGrad: reluGradFloat32AVX2,
		TanhGrad: tanhGradFloat32AVX2, SigmoidGrad: sigmoidGradFloat32AVX2, SqrtGrad: sqrtGradFloat32AVX2, SquareGrad: squareGradFloat32AVX2,
		Maximum: maximumFloat32AVX2, Minimum: minimumFloat32AVX2, AddReLU: addReLUFloat32AVX2,
	},
	AVX512: {
		Add: addFloat32AVX512, Sub: subFloat32AVX512, Mul: mulFloat32AVX512, Div: divFloat32AVX512, ReLUGrad: reluGradFloat32AVX512,
		TanhGrad: tanhGradFloat32AVX512, SigmoidGrad: sigmoidGradFloat32AVX512, SqrtGrad: sqrtGradFloat32AVX512, SquareGrad: squareGradFloat32AVX512,
		Maximum: maximumFloat32AVX512, Minimum: minimumFloat32AVX512, AddReLU: addReLUFloat32AVX512,
	},
}

var binary64 = [levels][binaries]BinaryFunc[float64]{
	AVX2: {
		Add: addFloat64AVX2, Sub: subFloat64AVX2, Mul: mulFloat64AVX2, Div: divFloat64AVX2, ReLUGrad: reluGradFloat64AVX2,
		TanhGrad: tanhGradFloat64AVX2, SigmoidGrad: sigmoidGradFloat64AVX2, SqrtGrad: sqrtGradFloat64AVX2, SquareGrad: squareGradFloat64AVX2,
		Maximum: maximumFloat64AVX2, Minimum: minimumFloat64AVX2, AddReLU: addReLUFloat64AVX2,
	},
	AVX512: {
		Add: addFloat64AVX512, Sub: subFloat64AVX512, Mul: mulFloat64AVX512, Div: divFloat64AVX512, ReLUGrad: reluGradFloat64AVX512,
		TanhGrad: tanhGradFloat64AVX512, SigmoidGrad: sigmoidGradFloat64AVX512, SqrtGrad: sqrtGradFloat64AVX512, SquareGrad: squareGradFloat64AVX512,
		Maximum: maximumFloat64AVX512, Minimum: minimumFloat64AVX512, AddReLU: addReLUFloat64AVX512,
	},
}

var gradient32 = [levels][gradients]GradientFunc[float32]{
	AVX2: {
		AbsGrad: absGradFloat32AVX2, ErfGrad: erfGradFloat32AVX2, RsqrtGrad: rsqrtGradFloat32AVX2, GELUGrad: geluGradFloat32AVX2,
		GELUTanhGrad: geluTanhGradFloat32AVX2, SiLUGrad: siluGradFloat32AVX2, ELUGrad: eluGradFloat32AVX2, SoftplusGrad: softplusGradFloat32AVX2,
		LeakyReLUGrad: leakyReLUGradFloat32AVX2, HardtanhGrad: hardtanhGradFloat32AVX2, LogSigmoidGrad: logSigmoidGradFloat32AVX2,
		ClampGrad: clampGradFloat32AVX2,
	},
	AVX512: {
		AbsGrad: absGradFloat32AVX512, ErfGrad: erfGradFloat32AVX512, RsqrtGrad: rsqrtGradFloat32AVX512, GELUGrad: geluGradFloat32AVX512,
		GELUTanhGrad: geluTanhGradFloat32AVX512, SiLUGrad: siluGradFloat32AVX512, ELUGrad: eluGradFloat32AVX512, SoftplusGrad: softplusGradFloat32AVX512,
		LeakyReLUGrad: leakyReLUGradFloat32AVX512, HardtanhGrad: hardtanhGradFloat32AVX512, LogSigmoidGrad: logSigmoidGradFloat32AVX512,
		ClampGrad: clampGradFloat32AVX512,
	},
}

var gradient64 = [levels][gradients]GradientFunc[float64]{
	AVX2: {
		AbsGrad: absGradFloat64AVX2, ErfGrad: erfGradFloat64AVX2, RsqrtGrad: rsqrtGradFloat64AVX2, GELUGrad: geluGradFloat64AVX2,
		GELUTanhGrad: geluTanhGradFloat64AVX2, SiLUGrad: siluGradFloat64AVX2, ELUGrad: eluGradFloat64AVX2, SoftplusGrad: softplusGradFloat64AVX2,
		LeakyReLUGrad: leakyReLUGradFloat64AVX2, HardtanhGrad: hardtanhGradFloat64AVX2, LogSigmoidGrad: logSigmoidGradFloat64AVX2,
		ClampGrad: clampGradFloat64AVX2,
	},
	AVX512: {
		AbsGrad: absGradFloat64AVX512, ErfGrad: erfGradFloat64AVX512, RsqrtGrad: rsqrtGradFloat64AVX512, GELUGrad: geluGradFloat64AVX512,
		GELUTanhGrad: geluTanhGradFloat64AVX512, SiLUGrad: siluGradFloat64AVX512, ELUGrad: eluGradFloat64AVX512, SoftplusGrad: softplusGradFloat64AVX512,
		LeakyReLUGrad: leakyReLUGradFloat64AVX512, HardtanhGrad: hardtanhGradFloat64AVX512, LogSigmoidGrad: logSigmoidGradFloat64AVX512,
		ClampGrad: clampGradFloat64AVX512,
	},
}
