"""The functions of liger_kernel.chunked_loss.functional."""

from rowjit.liger.chunked_loss import functions as f

liger_fused_linear_orpo = f.LigerFusedLinearORPOFunction.apply
liger_fused_linear_dpo = f.LigerFusedLinearDPOFunction.apply
liger_fused_linear_jsd = f.LigerFusedLinearJSDFunction.apply
liger_fused_linear_cosine = f.LigerFusedLinearCosineSimilarityFunction.apply
liger_fused_linear_cpo = f.LigerFusedLinearCPOFunction.apply
liger_fused_linear_simpo = f.LigerFusedLinearSimPOFunction.apply
liger_fused_linear_kto = f.LigerFusedLinearKTOFunction.apply
liger_fused_linear_grpo = f.LigerFusedLinearGRPOFunction.apply

__all__ = [name for name in globals() if name.startswith("liger_")]  # noqa: PLE0605
