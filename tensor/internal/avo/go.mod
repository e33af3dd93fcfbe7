module github.com/cistern-ml/cistern/tensor/internal/avo

go 1.26.0

require github.com/mmcloughlin/avo v0.6.0
