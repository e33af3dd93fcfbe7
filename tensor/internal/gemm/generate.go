package gemm

//go:generate sh -c "cd ../avo && go run ./gemm -level avx512 -out ../gemm/avx512_amd64.s -stubs ../gemm/avx512_amd64.go -pkg gemm -dispatch ../gemm/avx512_tiles_amd64.go"
//go:generate sh -c "cd ../avo && go run ./gemm -level avx2 -out ../gemm/avx2_amd64.s -stubs ../gemm/avx2_amd64.go -pkg gemm -dispatch ../gemm/avx2_tiles_amd64.go"
//go:generate sh -c "cd ../avo && go run ./neon -out ../gemm/neon_arm64.s -stubs ../gemm/neon_arm64.go"
