// In place of a module that the Go module proxy does not give out; see scripts/clients.sh.
module kubevirt.io/virt-template-api

go 1.26.0
