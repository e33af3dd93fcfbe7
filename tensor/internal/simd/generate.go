package simd

//go:generate go -C ../avo run ./vector -family arithmetic -out ../simd/arithmetic_amd64.s -stubs ../simd/arithmetic_amd64.go -pkg simd
//go:generate go -C ../avo run ./vector -family exp -out ../simd/exp_amd64.s -stubs ../simd/exp_amd64.go -pkg simd
//go:generate go -C ../avo run ./vector -family function -out ../simd/function_amd64.s -stubs ../simd/function_amd64.go -pkg simd
//go:generate go -C ../avo run ./vector -family row -out ../simd/row_amd64.s -stubs ../simd/row_amd64.go -pkg simd
//go:generate go -C ../avo run ./vector -family step -out ../simd/step_amd64.s -stubs ../simd/step_amd64.go -pkg simd
//go:generate go -C ../avo run ./vector -family sum -out ../simd/sum_amd64.s -stubs ../simd/sum_amd64.go -pkg simd
//go:generate go -C ../avo run ./vector -dispatch ../simd/dispatch_amd64.go -other ../simd/dispatch_other.go
//go:generate go -C ../avo run ./vector -family random -out ../simd/random_amd64.s -stubs ../simd/random_amd64.go -pkg simd
